"""A user's own parts: small enough that a whole plan runs in a second."""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from sicl.adapt import Adapter, Method, Moment
from sicl.bench.plan.plan import BenchPlan, load_plan
from sicl.calibrate import Calibration, Calibrator
from sicl.data import Dataset
from sicl.models.preprocess import Preprocess
from sicl.models.zoo import with_preprocess
from sicl.types import SourceData


def tiny_model(width: int = 4) -> nn.Module:
    """Return a network with one batch norm, the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(width, 3),
        )


def photo_model(size: int = 224) -> nn.Module:
    """Return the same network, which states how many pixels it wants."""
    return with_preprocess(tiny_model(), Preprocess(size=size, resize=size + 4))


def small_photo_model() -> nn.Module:
    """Return it for pictures of 24 pixels."""
    return photo_model(24)


def tiny_dataset(root: object, split: str) -> Dataset:
    """Return 60 images of 16 pixels: three classes, three colours."""
    draw = np.random.default_rng(0 if split == "test" else 1)
    labels = np.arange(60, dtype=np.int64) % 3
    images = draw.integers(0, 160, (60, 16, 16, 3), dtype=np.uint8)
    images[np.arange(60), :, :, labels] += 60
    return Dataset("tiny", images, labels, ("red", "green", "blue"), provenance={"dataset": f"tiny {split}"})


def full_disk(root: object, split: str) -> Dataset:
    """Fail as a full disk does."""
    raise OSError(errno.ENOSPC, "No space left on device", "/data/x")


@dataclass(frozen=True, kw_only=True)
class Shift(Method):
    """Adds a constant to the last bias at every batch.

    Args:
        by: the constant.
    """

    by: float = 0.1

    def _adapter(self, network: nn.Module, source: SourceData | None) -> Adapter:
        return _ShiftAdapter(self, network)


class _ShiftAdapter(Adapter):
    spec: Shift

    def update(self, images: Tensor, logits: Tensor | None) -> None:
        list(self.network.parameters())[-1].data[0] += self.spec.by


@dataclass(frozen=True, kw_only=True)
class Broken(Method):
    """Fails when it is attached."""

    def _adapter(self, network: nn.Module, source: SourceData | None) -> Adapter:
        raise RuntimeError("no such luck")


@dataclass(frozen=True, kw_only=True)
class Sleeper(Method):
    """Never comes back from its first batch; leaves a mark in `out` if there is such a folder."""

    def _adapter(self, network: nn.Module, source: SourceData | None) -> Adapter:
        if os.path.isdir("out"):
            Path("out", "asleep").touch()
        time.sleep(600)
        raise RuntimeError("woken")


@dataclass(frozen=True, kw_only=True)
class Deadly(Method):
    """Kills its own process in the middle of a stream, the first `times` times.

    Args:
        marks: a folder; one file is left there for each death.
        times: how often.
        node: if given, only on the machine that SICL_TEST_NODE names so, whose Ray dies too.
    """

    marks: str = ""
    times: int = 1
    node: str = ""

    def _adapter(self, network: nn.Module, source: SourceData | None) -> Adapter:
        return _DeadlyAdapter(self, network)


class _DeadlyAdapter(Adapter):
    spec: Deadly

    def update(self, images: Tensor, logits: Tensor | None) -> None:
        folder = Path(self.spec.marks)
        deaths = len(list(folder.iterdir()))
        here = not self.spec.node or os.environ.get("SICL_TEST_NODE") == self.spec.node
        late = time.monotonic() + 60
        while not here and deaths < self.spec.times and time.monotonic() < late:
            # On another machine: the one that shall die may still be starting, so leave it a cell to die in.
            time.sleep(0.1)
            deaths = len(list(folder.iterdir()))
        if self.counters["batches"] == 1 and deaths < self.spec.times and here:
            (folder / f"{deaths}-{os.getpid()}").touch()
            if self.spec.node:
                os.kill(os.getppid(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class Flat(Calibrator):
    """The same confidence for everything.

    Args:
        value: that confidence.
    """

    value: float = 0.5

    def calibration(self, adapter: Adapter, *, source: SourceData | None = None) -> Calibration:
        """Return the live calibration."""
        return _FlatCalibration(self.value)


class _FlatCalibration(Calibration):
    def __init__(self, value: float) -> None:
        self.value = value
        self.seen = 0

    def confidence(self, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        self.seen += len(moment.logits)
        return torch.full((len(moment.logits),), self.value), {}

    def summary(self) -> dict[str, float]:
        """Return how many samples went by."""
        return {"seen": float(self.seen)}


TINY = {
    "name": "tiny",
    "datasets": [{"name": "own_parts:tiny_dataset", "label": "tiny"}],
    "models": [{"name": "tiny", "load": "own_parts:tiny_model"}],
    "methods": ["source", "tent"],
    "calibrators": ["softmax", {"name": "own_parts:Flat", "label": "flat"}],
    "streams": [{"name": "benign", "corruptions": ["clean", "brightness"], "batch_size": 20}],
}
"""A plan of four cells that runs in a second."""


def deadly_plan(folder: Path, times: int, node: str = "") -> BenchPlan:
    """Return a plan of four cells, two of which kill their process until it has died `times` times."""
    folder.mkdir()
    options = {"marks": str(folder), "times": times, "node": node}
    method = {"name": "own_parts:Deadly", "label": "deadly", **options}
    streams = [{"name": "benign", "corruptions": ["clean", "brightness"], "batch_size": 20}]
    return load_plan({**TINY, "methods": ["tent", method], "streams": streams})
