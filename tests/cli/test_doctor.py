"""`sicl doctor --model`: what a model is, and which engine runs on it."""

from __future__ import annotations

import pytest
import torch
from typer.testing import CliRunner

import sicl
from sicl.cli import app
from sicl.errors import OptionError


def test_doctor_says_how_a_model_is_prepared_and_which_engine_runs() -> None:
    """Where a user looks, not only in an attribute."""
    done = CliRunner().invoke(app, ["doctor", "--model", "demo", "--method", "tent"])
    assert done.exit_code == 0, done.output
    assert "ResNet, 0.7 M parameters, 10 classes" in done.output
    assert "size=32" in done.output
    assert "Tent predicts, SICL calibrates" in done.output
    assert "engine: " in done.output
    assert "cut at layer1" in done.output
    assert "are finite" in done.output


def test_doctor_refuses_an_unknown_method_or_model() -> None:
    """In one sentence."""
    for words in (["--model", "demo", "--method", "tant"], ["--model", "dmeo"]):
        assert isinstance(CliRunner().invoke(app, ["doctor", *words]).exception, OptionError)


@pytest.mark.parametrize("calibrator", [sicl.SICL(), sicl.Softmax()], ids=lambda c: type(c).__name__)
def test_a_calibrated_model_explains_itself(calibrator: sicl.Softmax) -> None:
    """Before and after the first batch; calibrators without an engine say only who they are."""
    trusted = calibrator.attach(sicl.load_model("demo"))
    before = trusted.explain()
    trusted(torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    after = trusted.explain()
    assert f"Source predicts, {type(calibrator).__name__} calibrates" in after
    assert ("engine: chosen on the first batch" in before) == isinstance(calibrator, sicl.SICL)
    assert ("cut at" in after) == isinstance(calibrator, sicl.SICL)
