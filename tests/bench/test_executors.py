"""Executors: the same results from all, and lost workers replaced."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from own_parts import TINY, deadly_plan

from sicl.bench.executors import Event, Finished, Settings, Started, make_executor
from sicl.bench.executors.local import Inline, Processes, share_of_threads
from sicl.bench.executors.ray import RayCluster
from sicl.bench.plan.plan import BenchPlan, load_plan
from sicl.bench.run.runner import Result, run_plan
from sicl.errors import OptionError

ONE_THREAD = Settings(threads=1)


def results(result: Result) -> list[tuple[str, object]]:
    return [(record.label, record.calibrators) for record in result.records]


def test_processes_replace_dead_workers_and_agree_with_one_process(tmp_path: Path) -> None:
    """One worker is killed in the middle of a cell; the cell is run again, with the same result as in peace."""
    plan = deadly_plan(tmp_path / "marks", times=1)
    events: list[Event] = []
    shared = run_plan(
        plan, tmp_path / "shared", executor=Processes(workers=2), settings=ONE_THREAD, watch=events.append
    )
    assert len(list((tmp_path / "marks").iterdir())) == 1
    assert not shared.failed
    assert {record.environment["threads"] for record in shared.records} == {1}
    finished = [event.cell.id for event in events if isinstance(event, Finished)]
    assert sorted(finished) == sorted(cell.id for cell in plan.cells)
    assert sum(isinstance(event, Started) for event in events) == len(plan) + 1
    alone = run_plan(plan, tmp_path / "alone", settings=ONE_THREAD)
    assert results(shared) == results(alone)
    assert not (tmp_path / "shared" / ".cache").exists()


def test_a_cell_that_always_kills_its_worker_fails_and_the_others_go_on(tmp_path: Path) -> None:
    """After its retries the cell is recorded as lost."""
    plan = deadly_plan(tmp_path / "marks", times=99)
    plan = BenchPlan(plan.name, (plan.cells[2], plan.cells[0]), plan.table)
    result = run_plan(plan, tmp_path / "out", executor=Processes(workers=1, retries=0), settings=ONE_THREAD)
    assert [record.status for record in result.records] == ["failed", "done"]
    assert result.failed[0].error == "The cell was lost: its worker died once (exit code -9)."


def test_an_interrupted_run_leaves_no_workers(tmp_path: Path) -> None:
    """Ctrl-C while cells run: the workers end, and nothing is half-written."""

    def interrupt(event: Event) -> None:
        if isinstance(event, Started):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_plan(
            load_plan(TINY), tmp_path, executor=Processes(workers=1), settings=ONE_THREAD, watch=interrupt
        )
    assert not [child for child in multiprocessing.active_children() if child.name.startswith("sicl-")]
    assert not list(tmp_path.rglob("*.part"))
    assert run_plan(load_plan(TINY), tmp_path, settings=ONE_THREAD).ran == 4


def test_workers_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cores for two workers are two threads each; there is always one."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 2, 3}, raising=False)
    assert [share_of_threads(workers) for workers in (1, 2, 3, 9)] == [4, 2, 1, 1]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert share_of_threads(2) == 3


def test_executors_are_chosen_by_name_or_by_the_number_of_workers() -> None:
    """One worker is this process, several are several."""
    assert make_executor() == Inline()
    assert make_executor(workers=3) == Processes(workers=3)
    assert make_executor("processes") == Processes(workers=1)
    assert make_executor("ray", gpus=0.25) == RayCluster(gpus=0.25)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"name": "rey"}, "'ray'"),
        ({"name": "inline", "workers": 2}, "processes"),
        ({"workers": 0}, "`workers` must be > 0"),
        ({"workers": 2, "retries": -1}, "`retries`"),
        ({"name": "ray", "gpus": -1.0}, "`gpus`"),
        ({"name": "ray", "gpus": 2.0}, "`gpus`"),
        ({"name": "ray", "cpus": 0.0}, "`cpus`"),
    ],
)
def test_impossible_executors_are_refused(options: dict[str, Any], expected: str) -> None:
    """The sentence names the argument."""
    with pytest.raises(OptionError, match=expected):
        make_executor(**options)
