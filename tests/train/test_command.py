"""`sicl train` as a command."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import sicl.data
from sicl.cli.train import train
from sicl.errors import OptionError
from sicl.models.checkpoint import read_checkpoint


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """The command alone, on synthetic data with three classes."""

    def load(name: str, root: Path | None, split: str) -> SimpleNamespace:
        rng = np.random.default_rng(0)
        n = 64 if split == "train" else 16
        images = rng.integers(0, 256, (n, 8, 8, 3), dtype=np.uint8)
        labels = np.arange(n, dtype=np.int64) % 3

        class _Data(SimpleNamespace):
            def __len__(self) -> int:
                return n

        return _Data(images=images, labels=labels, n_classes=3)

    monkeypatch.setattr(sicl.data, "load_dataset", load)
    made = typer.Typer()
    made.command()(train)
    return made


def test_the_command_trains_prints_each_epoch_and_writes_the_file(app: typer.Typer, tmp_path: Path) -> None:
    """Options reach the spec, and the data set decides classes and normalisation."""
    out = tmp_path / "m.safetensors"
    options = [
        "--dataset",
        "cifar100",
        "--width",
        "4",
        "--epochs",
        "2",
        "--set",
        "batch_size=16",
        "--device",
        "cpu",
    ]
    result = CliRunner().invoke(app, [str(out), *options])
    assert result.exit_code == 0, result.output
    assert "epoch 2/2" in result.output
    assert "val accuracy" in result.output
    _, metadata = read_checkpoint(out)
    assert (metadata["width"], metadata["n_classes"], metadata["dataset"]) == ("4", "3", "cifar100")
    assert metadata["mean"] == "0.5071,0.4865,0.4409"


def test_a_wrong_recipe_is_one_sentence(app: typer.Typer, tmp_path: Path) -> None:
    """The error is ours, for the command line to print."""
    result = CliRunner().invoke(app, [str(tmp_path / "m.safetensors"), "--recipe", "quick"])
    assert isinstance(result.exception, OptionError)
    assert "`recipe` must be one of paper, fast" in str(result.exception)
