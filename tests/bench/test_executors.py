"""Executors: the same results from all, and lost workers replaced."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from own_parts import TINY

from sicl.bench.executors import Event, Finished, Settings, Started, make_executor
from sicl.bench.executors.inline import Inline
from sicl.bench.executors.processes import Processes, share_of_threads
from sicl.bench.executors.ray import RayCluster, _connect, _room
from sicl.bench.plan import Plan, load_plan
from sicl.bench.runner import Result, run_plan
from sicl.errors import OptionError

ONE_THREAD = Settings(threads=1)


def results(result: Result) -> list[tuple[str, object]]:
    return [(record.label, record.calibrators) for record in result.records]


def deadly_plan(folder: Path, times: int, **changes: Any) -> Plan:
    folder.mkdir()
    method = {"name": "own_parts:Deadly", "label": "deadly", "marks": str(folder), "times": times}
    streams = [{"name": "benign", "corruptions": ["clean", "brightness"], "batch_size": 20}]
    return load_plan({**TINY, "methods": ["tent", method], "streams": streams, **changes})


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
    plan = Plan(plan.name, (plan.cells[2], plan.cells[0]), plan.table)
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


def test_ray_replaces_dead_workers_and_agrees_with_one_process(tmp_path: Path) -> None:
    """A worker of a local cluster is killed in the middle of a cell; Ray starts another, and nothing is lost."""
    pytest.importorskip("ray")
    plan = deadly_plan(tmp_path / "marks", times=1)
    program = (
        "import json, sys; from sicl.bench.executors import Settings, make_executor\n"
        "from sicl.bench.plan import load_plan; from sicl.bench.runner import run_plan\n"
        "run_plan(load_plan(json.loads(sys.argv[1])), sys.argv[2],\n"
        "  executor=make_executor('ray', workers=1, cpus=1), settings=Settings(threads=1))"
    )
    # Ray warns and forks as it likes; its own process keeps that away from the other tests.
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", program, json.dumps(plan.table), str(tmp_path / "ray")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "marks").iterdir())) == 1
    alone = run_plan(plan, tmp_path / "alone", settings=ONE_THREAD)
    clustered = run_plan(plan, tmp_path / "ray")
    assert clustered.ran == 0
    assert not clustered.failed
    assert results(clustered) == results(alone)


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


def test_a_gpu_device_on_ray_needs_gpus() -> None:
    """Without any, Ray would hide them all; and it is Ray that chooses which."""
    assert RayCluster()._gpus(Settings(device="cuda")) == 1.0
    assert RayCluster()._gpus(Settings()) == 0.0
    RayCluster(gpus=0.25)._check(Settings(device="cuda"))
    with pytest.raises(OptionError, match="share a GPU"):
        RayCluster(gpus=0)._check(Settings(device="cuda"))
    with pytest.raises(OptionError, match="must be cuda on Ray"):
        RayCluster()._check(Settings(device="cuda:1"))


def test_auto_on_a_cluster_looks_at_the_cluster() -> None:
    """The machine that starts a run may have no GPU."""
    auto, cpu, gpu = Settings(device="auto"), [{"CPU": 2.0}], [{"CPU": 2.0}, {"CPU": 8.0, "GPU": 1.0}]
    assert RayCluster()._device(auto, cpu) == "cpu"
    assert RayCluster()._device(auto, gpu) == "cuda"
    assert RayCluster(gpus=0)._device(auto, gpu) == "cpu"
    assert RayCluster(gpus=0.5)._device(auto, cpu) == "cuda"
    assert RayCluster()._device(Settings(), gpu) == "cpu"


class _FakeRay:
    """Keeps what `init` is given; refuses if asked to."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.given: dict[str, Any] = {}

    def init(self, **options: Any) -> None:
        self.given = options
        if self.error is not None:
            raise self.error


def test_the_address_of_a_cluster_reaches_ray_and_a_refusal_is_explained() -> None:
    """Workers get this process's module path; an unreachable cluster is one sentence."""
    ray = _FakeRay()
    _connect(ray, "ray://host:10001")
    assert ray.given["address"] == "ray://host:10001"
    assert "include_dashboard" not in ray.given
    local = _FakeRay()
    _connect(local, None)
    assert local.given["address"] == "local"
    assert str(Path(__file__).parent) in ray.given["runtime_env"]["env_vars"]["PYTHONPATH"]
    with pytest.raises(OptionError, match=r"'ray://host:1'.*authentication"):
        _connect(_FakeRay(ConnectionError("refused")), "ray://host:1")


def test_a_cluster_has_room_for_as_many_cells_as_its_scarcest_resource() -> None:
    """Fractions of a GPU count, but none is put together from two GPUs or two nodes."""
    nodes = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 1.0}]
    assert _room(nodes, {"CPU": 1.0, "GPU": 0.0}) == 9
    assert _room(nodes, {"CPU": 0.1, "GPU": 0.0}) == 90
    assert _room(nodes, {"CPU": 1.0, "GPU": 0.5}) == 4
    assert _room(nodes, {"CPU": 1.0, "GPU": 0.4}) == 4
    assert _room(nodes, {"CPU": 3.0, "GPU": 0.25}) == 2
    with pytest.raises(OptionError, match=r"no room for a cell, which takes 9 CPU;"):
        _room(nodes, {"CPU": 9.0, "GPU": 0.0})
    with pytest.raises(OptionError, match="no room"):
        _room([{"CPU": 8.0}], {"CPU": 1.0, "GPU": 0.25})
