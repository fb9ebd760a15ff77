"""`TensorBoard`: what a stream's event files hold, read back by TensorBoard itself."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import sicl
from sicl.errors import OptionError
from sicl.monitor import TensorBoard

IMAGES = torch.rand(32, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def _network() -> torch.nn.Module:
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(8 * 36, 4)).eval()


def _read(folder: Path) -> Any:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    return reader.EventAccumulator(str(folder)).Reload()


def test_events_of_monitors_and_predictions_become_runs(tmp_path: Path) -> None:
    """Each stream is a run; steps count samples, values are the events' and the predictions' own."""
    pytest.importorskip("tensorboard")
    with TensorBoard(tmp_path) as board:
        for name in ("left", "../right side"):
            trusted = sicl.SICL(variants=2, content_variants=2).attach(_network())
            watched = sicl.Monitor(window=32).attach(trusted, observers=[board], name=name)
            for part in IMAGES.split(16):
                out = watched(part)
                board.add(out, name=name)
            expected = watched.estimate
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_right_side", "left"]
    run = _read(tmp_path / "_right_side")
    assert expected is not None
    last = run.Scalars("monitor/accuracy")[-1]
    assert (last.step, last.value) == (32, pytest.approx(expected[0]))
    confidence = run.Scalars("prediction/confidence")
    assert [point.step for point in confidence] == [16, 32]
    assert confidence[-1].value == pytest.approx(float(out.confidence.mean()))
    tags = set(run.Tags()["scalars"])
    assert {"monitor/alarmed", "monitor/variety", "prediction/collapse", "prediction/variety"} <= tags
    assert any(tag.startswith("prediction/say/") for tag in tags)
    assert run.Tags()["histograms"] == ["prediction/confidences"]


def test_an_alarm_is_a_text_and_a_step_to_one(tmp_path: Path) -> None:
    """Alarms are said in words, and `alarmed` is 1 from there on."""
    pytest.importorskip("tensorboard")
    with TensorBoard(tmp_path) as board:
        event = {"event": "alarm", "name": "s", "seen": 5, "alarm": "unlike what it knows.", "alarmed": True}
        board(event)
        assert _read(tmp_path / "s").Scalars("monitor/alarmed")[0].value == 1
    assert _read(tmp_path / "s").Tags()["tensors"] == ["monitor/alarm/text_summary"]


def test_without_tensorboard_the_command_to_type_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing extra is one sentence, and nothing is written."""
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(OptionError, match=r"pip install 'sicl\[tensorboard\]'"):
        TensorBoard(tmp_path / "boards")
    assert not (tmp_path / "boards").exists()
