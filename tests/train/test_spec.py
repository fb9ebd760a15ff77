"""Recipes and their checks."""

from __future__ import annotations

import json

import pytest

from sicl.errors import OptionError
from sicl.train import TrainSpec
from sicl.train.loop import learning_rate
from sicl.train.spec import parse_options, recipe


def test_the_paper_recipe_is_the_printed_one() -> None:
    """SGD 0.1 with momentum 0.9, weight decay 5e-4, batch 128, 200 epochs, crop 4 and flip, nothing else."""
    spec = recipe("paper", "resnet50")
    assert (spec.optimizer, spec.lr, spec.momentum, spec.weight_decay) == ("sgd", 0.1, 0.9, 5e-4)
    assert (spec.batch_size, spec.epochs, spec.crop_padding, spec.flip) == (128, 200, 4, True)
    assert (spec.warmup_epochs, spec.label_smoothing, spec.mix, spec.ema, spec.jitter) == (0, 0, 0, 0, 0)
    assert spec.precision == "float32"


def test_vision_transformers_get_adamw_in_both_recipes() -> None:
    """SGD at 0.1 does not train a ViT."""
    assert {recipe(name, "vit_small").optimizer for name in ("paper", "fast")} == {"adamw"}


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("lr", 0.0, "`lr` must be > 0, got 0.0"),
        ("epochs", 0, "`epochs` must be > 0"),
        ("arch", "resnet19", "Did you mean 'resnet18'"),
        ("ema", 1.0, "`ema` must lie in"),
        ("mix", 2.0, "`mix` must lie in"),
        ("precision", "half", "`precision` must be one of"),
        ("seed", -1, "`seed` must lie in"),
    ],
)
def test_bad_values_are_refused_when_the_spec_is_made(field: str, value: object, message: str) -> None:
    """A spec that exists can be run."""
    with pytest.raises(OptionError, match=message):
        TrainSpec(**{field: value})


def test_a_spec_is_its_own_json() -> None:
    """The JSON in a checkpoint makes the same spec again."""
    spec = recipe("fast", "vit_small")
    loaded = json.loads(spec.to_json())
    loaded["mean"], loaded["std"] = tuple(loaded["mean"]), tuple(loaded["std"])
    assert TrainSpec(**loaded) == spec


def test_options_take_their_fields_types() -> None:
    """Numbers, switches, words and triples are read as the field's type."""
    chosen = parse_options(["lr=0.5", "epochs=3", "flip=false", "optimizer=adamw", "mean=0,0.5,1"])
    assert chosen == {"lr": 0.5, "epochs": 3, "flip": False, "optimizer": "adamw", "mean": (0.0, 0.5, 1.0)}


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("lr", "NAME=VALUE, got 'lr'"),
        ("rl=1", "`set` must be one of"),
        ("lr=x", "`lr` must be a float, got 'x'"),
        ("flip=2", "`flip` must be a bool, got '2'"),
    ],
)
def test_bad_options_are_one_sentence(option: str, message: str) -> None:
    """Unknown names and wrong types are told apart."""
    with pytest.raises(OptionError, match=message):
        parse_options([option])


def test_the_learning_rate_warms_up_and_ends_near_zero() -> None:
    """Linear up to the peak, half a cosine down; the middle of the cosine is half the peak."""
    spec = TrainSpec(lr=1.0, epochs=12, warmup_epochs=2)
    rates = [learning_rate(spec, step, 10) for step in range(120)]
    assert rates[:20] == sorted(rates[:20])
    assert rates[20] == 1.0
    assert rates[70] == pytest.approx(0.5)
    assert rates[20:] == sorted(rates[20:], reverse=True)
    assert 0 < rates[-1] < 1e-3


def test_a_short_run_does_not_end_in_its_warm_up() -> None:
    """With fewer epochs than warm-up the rate still comes down."""
    spec = TrainSpec(lr=1.0, epochs=2, warmup_epochs=5)
    rates = [learning_rate(spec, step, 10) for step in range(20)]
    assert max(rates) == rates[10] == 1.0
    assert rates[-1] < 0.1
