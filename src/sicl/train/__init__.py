"""Train source models: a frozen `TrainSpec` in, weights out; a killed run goes on where it stopped."""

from sicl.train.loop import EpochReport, TrainResult, fit, train_to_file
from sicl.train.spec import RECIPES, TrainSpec

__all__ = ["RECIPES", "EpochReport", "TrainResult", "TrainSpec", "fit", "train_to_file"]
