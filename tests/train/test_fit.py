"""Training itself: it learns, it repeats, and it survives being killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sicl.errors import DataError, InputError, OptionError
from sicl.models.checkpoint import read_checkpoint
from sicl.models.zoo import load_model
from sicl.train import EpochReport, TrainSpec, fit, train_to_file
from sicl.train.spec import recipe

SPEC = TrainSpec(arch="resnet18", width=4, n_classes=4, epochs=3, batch_size=32, lr=0.05, crop_padding=1)
Data = tuple[NDArray[np.uint8], NDArray[np.int64]]


def make_data(n: int = 160, size: int = 8) -> Data:
    """Images whose brightness tells their class."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, n)
    images = rng.integers(0, 60, (n, size, size, 3)) + 60 * labels[:, None, None, None]
    return images.astype(np.uint8), labels


def _same(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    theirs = second.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in first.state_dict().items())


def test_training_learns_and_leaves_the_global_random_state_alone() -> None:
    """A small network tells four brightnesses apart, and the caller's random numbers do not move."""
    state = torch.get_rng_state()
    images, labels = make_data(320)
    result = fit(replace(SPEC, epochs=6), images, labels, val=(images[:80], labels[:80]))
    assert torch.equal(torch.get_rng_state(), state)
    assert result.history[-1].accuracy is not None
    assert result.history[-1].accuracy > 0.9
    assert result.history[-1].loss < 0.5 * result.history[0].loss
    assert not result.model.training


def test_the_seed_decides_the_weights() -> None:
    """Same seed, same weights, bit for bit; another seed, others."""
    data = make_data()
    first = fit(SPEC, *data).model
    assert _same(first, fit(SPEC, *data).model)
    assert not _same(first, fit(replace(SPEC, seed=1), *data).model)


@pytest.mark.parametrize(
    "spec",
    [
        replace(SPEC, ema=0.9, channels_last=True),
        replace(recipe("fast", "resnet18"), width=4, n_classes=4, epochs=3, batch_size=32),
        replace(recipe("fast", "resnet18_gn"), width=8, n_classes=4, epochs=3, batch_size=32),
        replace(
            recipe("fast", "vit_small"), width=2, n_classes=4, epochs=3, batch_size=64, precision="float32"
        ),
    ],
    ids=["ema", "fast", "group norm", "vit"],
)
def test_a_run_stopped_between_epochs_goes_on_to_the_same_weights(spec: TrainSpec, tmp_path: Path) -> None:
    """Averages, momenta and warm-up all come back from the resume file."""
    data = make_data(128, 32 if spec.arch == "vit_small" else 8)

    def stop(report: EpochReport) -> None:
        if report.epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(spec, *data, resume=tmp_path / "r", on_epoch=stop)
    resumed = fit(spec, *data, resume=tmp_path / "r")
    assert _same(resumed.model, fit(spec, *data).model)
    assert [report.epoch for report in resumed.history] == [1, 2, 3]


_KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_fit import SPEC, make_data
from sicl.train import train_to_file
seen = []
def kill(step, n_steps):
    seen.append(step)
    if len(seen) == 2 * n_steps + 2:
        os.kill(os.getpid(), signal.SIGKILL)
data = make_data()
train_to_file(SPEC, data, data, Path(sys.argv[2]), dataset="toy", on_step=kill)
"""


def test_a_killed_run_gives_the_weights_of_an_undisturbed_one(tmp_path: Path) -> None:
    """SIGKILL in the middle of an epoch loses that epoch's steps and nothing else."""
    out, data = tmp_path / "m.safetensors", make_data()
    command = [sys.executable, "-c", _KILLED, str(Path(__file__).parent), str(out)]
    killed = subprocess.run(command, check=False, capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
    assert not out.exists()
    epochs: list[int] = []
    train_to_file(SPEC, data, data, out, dataset="toy", on_epoch=lambda report: epochs.append(report.epoch))
    train_to_file(SPEC, data, data, tmp_path / "whole.safetensors", dataset="toy")
    assert epochs == [3]
    (resumed, about), (whole, about_whole) = map(read_checkpoint, (out, tmp_path / "whole.safetensors"))
    assert all(torch.equal(resumed[name], tensor) for name, tensor in whole.items())
    assert about == about_whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.safetensors", "whole.safetensors"]


def test_the_file_holds_the_configuration_and_loads_by_itself(tmp_path: Path) -> None:
    """Spec, data set and accuracy are in the header; `load_model` needs nothing else."""
    data = make_data()
    spec = replace(SPEC, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    result = train_to_file(spec, data, data, tmp_path / "m.safetensors", dataset="toy", half=True)
    state, metadata = read_checkpoint(tmp_path / "m.safetensors")
    assert json.loads(metadata["train"])["lr"] == 0.05
    assert metadata["dataset"] == "toy"
    assert float(metadata["val_accuracy"]) == pytest.approx(result.history[-1].accuracy, abs=1e-4)
    assert state["fc.weight"].dtype == torch.float16
    images = torch.from_numpy(data[0][:5]).permute(0, 3, 1, 2) / 255
    loaded = load_model(tmp_path / "m.safetensors", n_classes=4)
    torch.testing.assert_close(loaded(images), result.model(images), atol=0.02, rtol=0.02)


def test_a_resume_file_of_another_run_is_refused(tmp_path: Path) -> None:
    """Other options or other data must not go on from it; a damaged one says what to do."""
    images, labels = make_data()
    fit(replace(SPEC, epochs=1), images, labels, resume=tmp_path / "r")
    with pytest.raises(OptionError, match="other options or data"):
        fit(replace(SPEC, epochs=2), images, labels, resume=tmp_path / "r")
    with pytest.raises(OptionError, match="other options or data"):
        fit(replace(SPEC, epochs=1), images[::-1], labels, resume=tmp_path / "r")
    (tmp_path / "r").write_bytes(b"PK\3\4 half")
    with pytest.raises(DataError, match="damaged; delete it"):
        fit(SPEC, images, labels, resume=tmp_path / "r")


def test_a_finished_file_is_not_overwritten(tmp_path: Path) -> None:
    """An existing output is somebody's trained model."""
    (tmp_path / "m.safetensors").write_bytes(b"kept")
    with pytest.raises(OptionError, match="must be a new file"):
        train_to_file(SPEC, make_data(), make_data(), tmp_path / "m.safetensors", dataset="toy")
    with pytest.raises(OptionError, match=r"must end in \.safetensors"):
        train_to_file(SPEC, make_data(), make_data(), tmp_path / "m.pt", dataset="toy")


def test_a_diverging_run_stops_with_one_sentence() -> None:
    """The loss is checked once an epoch."""
    with pytest.raises(OptionError, match=r"`lr` = 1e\+30 made the loss nan in epoch 1"):
        fit(replace(SPEC, lr=1e30), *make_data())


def test_wrong_arrays_are_refused() -> None:
    """Type, shape, range of labels and the ViT's image size are checked before anything runs."""
    images, labels = make_data(40)
    with pytest.raises(InputError, match="must be uint8 N x H x W x 3"):
        fit(SPEC, images.astype(np.float32), labels)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="one for each of 40 images"):
        fit(SPEC, images, labels[:-1])
    with pytest.raises(InputError, match="set `n_classes`"):
        fit(replace(SPEC, n_classes=3), images, labels)
    with pytest.raises(InputError, match="32 x 32 for vit_small, got 8 x 8"):
        fit(recipe("fast", "vit_small"), images, labels)
