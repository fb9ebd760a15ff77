"""Graphs are no part of a live model: a copy captures its own."""

from __future__ import annotations

import copy
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from calibrate_networks import images, small_net

import sicl

sys.path.append(str(Path(__file__).parents[1] / "engine"))
import stand_in


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_copy_captures_graphs_of_its_own(copied: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are no part of a live model; a copy goes on as the original does, and gives back its own memory."""
    stand_in.use(monkeypatch)
    trusted = sicl.SICL(engine="graph", precision="float32").attach(sicl.Tent().attach(small_net()))
    for seed in range(3):
        trusted(images(16, seed=seed))
    other = copied(trusted)
    assert other.calibration.poll.captures.captured == 0
    for seed in range(3, 6):
        found, expected = other(images(16, seed=seed)), trusted(images(16, seed=seed))
        torch.testing.assert_close(found.confidence, expected.confidence, atol=1e-5, rtol=0)
    assert other.calibration.poll.captures.captured == 1
    other.calibration.graphs.forget()
    counts = [live.calibration.poll.captures.captured for live in (other, trusted)]  # type: ignore[attr-defined]
    assert counts == [0, 1]
