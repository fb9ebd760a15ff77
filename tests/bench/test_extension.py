"""A user's own method, calibrator, stream, model and data set in a plan, without touching the package."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sicl.bench.executors import Settings
from sicl.bench.executors.local import Processes
from sicl.bench.plan.plan import load_plan
from sicl.bench.run.live import find_own_modules
from sicl.bench.run.runner import run_plan

MODULE = '''
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from sicl.adapt import Adapter, Method
from sicl.calibrate import Calibration, Calibrator
from sicl.data import Dataset
from sicl.streams import Benign


@dataclass(frozen=True, kw_only=True)
class Nudge(Method):
    """Lets the last bias drift."""

    by: float = 0.01

    def _adapter(self, network, source):
        return Nudged(self, network)


class Nudged(Adapter):
    def update(self, images, logits):
        self.network[-1].bias.data += self.spec.by


@dataclass(frozen=True, kw_only=True)
class Margin(Calibrator):
    """The gap between the two most likely classes; fits nothing but asks for source data."""

    needs_source = True

    def calibration(self, adapter, *, source=None):
        assert source is not None and len(source) == 30
        return MarginOf()


class MarginOf(Calibration):
    def confidence(self, moment):
        top = moment.logits.softmax(1).topk(2).values
        return top[:, 0] - top[:, 1], {}


@dataclass(frozen=True, kw_only=True)
class Backwards(Benign):
    """A stream of one's own: the last image first."""

    def plan(self, dataset):
        plan = super().plan(dataset)
        return plan.reordered(np.argsort(plan.positions)[::-1].copy())


def network(hidden: int = 4):
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, hidden, 3), nn.BatchNorm2d(hidden), nn.ReLU(),
                         nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(hidden, 2))


def squares(root, split):
    draw = np.random.default_rng(len(split))
    images = draw.integers(0, 255, (30, 16, 16, 3), dtype=np.uint8)
    return Dataset("squares", images, np.arange(30) % 2, provenance={"split": split})
'''

PLAN = """
[[datasets]]
name = "users_parts:squares"
label = "squares"

[[models]]
name = "small"
load = "users_parts:network"

[[methods]]
name = "users_parts:Nudge"
label = "nudge"
by = 0.5

[[calibrators]]
name = "softmax"

[[calibrators]]
name = "users_parts:Margin"
label = "margin"

[[streams]]
name = "users_parts:Backwards"
label = "backwards"
corruption = "clean"
batch_size = 10
"""


@pytest.fixture
def plan_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a plan with a module of the user's beside it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "users_parts", raising=False)
    (tmp_path / "users_parts.py").write_text(MODULE)
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path / "plan.toml"


def test_own_parts_beside_a_plan_run_in_other_processes_too(plan_file: Path, tmp_path: Path) -> None:
    """Every part comes from the module beside the plan; a worker finds it as well."""
    find_own_modules(plan_file.parent)
    plan = load_plan(plan_file)
    here = run_plan(plan, tmp_path / "here", settings=Settings(threads=1))
    record = here.records[0]
    assert record.error is None
    assert record.label == "squares / small / nudge / backwards clean / seed 0"
    assert record.spec["resolved"]["method"] == {"class": "Nudge", "by": 0.5, "predict": "before", "seed": 0}
    assert record.spec["dataset"]["source"] == {"name": "users_parts:squares", "split": "val", "n": 2000}
    softmax, margin = record.calibrators["softmax"], record.calibrators["margin"]
    assert margin["mean_confidence"] == pytest.approx(2 * softmax["mean_confidence"] - 1, abs=1e-6)
    there = run_plan(plan, tmp_path / "there", executor=Processes(workers=1), settings=Settings(threads=1))
    assert there.records[0].calibrators == record.calibrators
