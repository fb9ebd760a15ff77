"""Calibrators: frozen specs that turn an adapter's predictions into trustworthy confidence."""

from sicl.calibrate._base import Calibrated, Calibration, Calibrator, Panel
from sicl.calibrate.sicl import SICL
from sicl.calibrate.softmax import Softmax

CALIBRATORS: dict[str, type[Calibrator]] = {"softmax": Softmax, "sicl": SICL}

__all__ = ["CALIBRATORS", "SICL", "Calibrated", "Calibration", "Calibrator", "Panel", "Softmax"]
