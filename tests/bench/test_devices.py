"""Devices: which GPU a worker takes, and what happens when one is not there or breaks (with fakes, no GPU)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from own_parts import TINY

from sicl.bench.executors import Event, Finished, Settings, local
from sicl.bench.executors.local import Inline, Processes
from sicl.bench.plan.cell import Cell
from sicl.bench.plan.plan import load_plan
from sicl.bench.run.machine import choose_device, device_of_worker
from sicl.bench.run.run import CellOutcome, run_cell
from sicl.bench.run.runner import run_plan
from sicl.bench.run.shelf import Shelf
from sicl.errors import OptionError, SiclError


def pretend_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def broken() -> Cell:
    return load_plan({**TINY, "methods": ["own_parts:Broken"]}).cells[0]


def test_workers_share_one_gpu_and_take_turns_on_several() -> None:
    """A worker that replaces another has its number, hence its GPU."""
    assert [device_of_worker("cuda", worker, 1) for worker in range(3)] == ["cuda"] * 3
    assert [device_of_worker("cuda", worker, 2) for worker in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert device_of_worker("cuda:1", 0, 4) == "cuda:1"
    assert device_of_worker("cpu", 3, 4) == "cpu"


def test_a_workers_shelf_is_on_its_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third of three workers on two GPUs is on the first again."""
    pretend_gpus(monkeypatch, 2)
    assert [str(Settings(device="cuda").shelf(i).device) for i in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert str(Settings(device="cpu").shelf(1).device) == "cpu"


def test_auto_is_a_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked for and is here stays as it is."""
    pretend_gpus(monkeypatch, 0)
    assert choose_device("auto") == "cpu"
    pretend_gpus(monkeypatch, 2)
    assert choose_device("auto") == "cuda"
    assert choose_device("cuda:1") == "cuda:1"
    assert choose_device("cpu") == "cpu"


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [
        ("cuda", 0, "sees 0 GPUs here"),
        ("cuda:2", 2, "sees 2 GPUs here"),
        ("gpu", 1, r"must be cpu, cuda, cuda:1, mps or auto, got 'gpu'"),
        ("mps", 0, "does not have"),
    ],
)
@pytest.mark.parametrize("executor", [Inline(), Processes(workers=2)])
def test_a_device_that_is_not_here_stops_the_run_before_any_cell(
    device: str,
    gpus: int,
    expected: str,
    executor: Inline | Processes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is one sentence, a new folder is not made, and in an old one no cell is recorded as failed."""
    pretend_gpus(monkeypatch, gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises(OptionError, match=expected):
            run_plan(load_plan(TINY), folder, executor=executor, settings=Settings(device=device))
    assert not list(tmp_path.glob("*seed*.json"))
    assert not (tmp_path / "new").exists()


class _Current:
    """Notes which GPU was made the current one."""

    def __init__(self) -> None:
        self.devices: list[str] = []

    def __call__(self, device: torch.device) -> AbstractContextManager[None]:
        self.devices.append(str(device))
        return nullcontext()


def test_a_cell_runs_with_its_gpu_as_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams and graphs that name no device would otherwise go to the first GPU."""
    current = _Current()
    monkeypatch.setattr(torch.cuda, "device", current)
    run_cell(broken(), Shelf(device="cuda:1"))
    run_cell(broken(), Shelf())
    assert current.devices == ["cuda:1"]


def test_a_gpu_that_answers_no_more_spends_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure in a kernel CUDA refuses all; after an ordinary failure memory is given back."""
    monkeypatch.setattr(torch.cuda, "device", _Current())
    calls: list[Any] = []
    monkeypatch.setattr(torch.cuda, "synchronize", calls.append)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("emptied"))
    outcome = run_cell(broken(), Shelf(device="cuda:1"))
    assert not outcome.spent
    assert calls == [torch.device("cuda:1"), "emptied"]

    def refuse(device: torch.device) -> None:
        raise RuntimeError("device-side assert triggered")

    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    outcome = run_cell(broken(), Shelf(device="cuda:1"))
    assert outcome.spent
    assert outcome.record.status == "failed"
    assert not run_cell(broken()).spent


class _Poisoned:
    """Stands for a worker process: its first cell spends it, it may not get another."""

    made: list[_Poisoned]

    def __init__(self, index: int, settings: Settings) -> None:
        self.cell: Cell | None = None
        self.cells: list[str] = []
        self.ended = False
        self.connection = self
        _Poisoned.made.append(self)

    def start(self, cell: Cell) -> None:
        self.cell = cell
        self.cells.append(cell.id)

    def recv(self) -> tuple[str, CellOutcome]:
        assert self.cell is not None
        outcome = run_cell(self.cell)
        return "done", CellOutcome(outcome.record, spent=True)

    def kill(self) -> None:
        self.ended = True

    retire = kill


def test_a_spent_worker_is_replaced_and_its_cell_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each cell keeps its own result; no worker is started for nothing."""
    _Poisoned.made = []
    monkeypatch.setattr(local, "_Worker", _Poisoned)
    monkeypatch.setattr(local, "wait", lambda connections, *_: connections[:1])
    events: list[Event] = []
    plan = load_plan(TINY)
    run_plan(plan, tmp_path, executor=Processes(workers=2), watch=events.append)
    assert [len(worker.cells) for worker in _Poisoned.made] == [1, 1, 1, 1]
    assert all(worker.ended for worker in _Poisoned.made)
    finished = [event.cell.id for event in events if isinstance(event, Finished)]
    assert sorted(finished) == sorted(cell.id for cell in plan.cells)


class _Dying(_Poisoned):
    """Stands for a worker process that dies in the middle of a message; those after it live."""

    def recv(self) -> tuple[str, CellOutcome]:
        assert self.cell is not None
        if self is _Poisoned.made[0]:
            raise OSError("got end of file during message")
        return "done", run_cell(self.cell)


def test_a_worker_that_dies_while_it_speaks_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a result is none: the cell is run again, and written once."""
    _Poisoned.made = []
    monkeypatch.setattr(local, "_Worker", _Dying)
    monkeypatch.setattr(local, "wait", lambda connections, *_: connections[:1])
    result = run_plan(load_plan(TINY), tmp_path, executor=Processes(workers=1))
    assert not result.failed
    assert [len(worker.cells) for worker in _Poisoned.made] == [1, 4]


def test_one_process_whose_gpu_broke_stops_and_the_next_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell that broke it is recorded; the others are not blamed."""
    plan = load_plan({**TINY, "methods": ["own_parts:Broken", "source"]})
    monkeypatch.setattr("sicl.bench.run.run._answers", lambda device: False)
    with pytest.raises(SiclError, match=r"no such luck\); the same command goes on"):
        run_plan(plan, tmp_path)
    assert len(list(tmp_path.glob("*seed*.json"))) == 1
