"""The Ray executor with a pretended Ray: who is let in, how much room there is, what is lost and run again."""

from __future__ import annotations

import importlib.util
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from own_parts import TINY

from sicl.bench.executors import Event, Finished, Settings, cluster, ray
from sicl.bench.executors.cluster import connect, own_paths, require_answer
from sicl.bench.executors.ray import RayCluster, _room
from sicl.bench.plan.cell import Cell
from sicl.bench.plan.plan import load_plan
from sicl.bench.run.run import CellOutcome, run_cell
from sicl.bench.run.runner import Result, run_plan
from sicl.errors import OptionError, SetupError, SiclError


class RayError(Exception):
    """As Ray's: a worker was lost."""


class NoStart(RayError):
    """As Ray's: a worker could not be made."""

    actor_init_failed = True


@dataclass
class FakeRay:
    """Runs an actor's cell when its result is fetched; what it is told to lose is lost instead.

    Args:
        losses: what fetching the first results raises or returns, in order; None is a result.
        resources: of the only node.
        error: what `init` raises.
        silent: how often `wait` comes back with nothing.
        late: the same, and then the first cell is over its time.
    """

    losses: list[Exception | CellOutcome | None] = field(default_factory=list)
    resources: dict[str, float] = field(default_factory=lambda: {"CPU": 1.0})
    error: Exception | None = None
    silent: int = 0
    late: int = 0
    given: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, Any] = field(default_factory=dict)
    cells: list[list[str]] = field(default_factory=list)
    killed: int = 0
    exceptions = SimpleNamespace(RayError=RayError)

    def init(self, **options: Any) -> None:
        self.given = options
        if self.error is not None:
            raise self.error

    def is_initialized(self) -> bool:
        return False

    def shutdown(self) -> None:
        self.given["shut"] = True

    def nodes(self) -> list[dict[str, Any]]:
        gone = {"NodeID": "b", "Alive": False, "Resources": {"CPU": 64.0}}
        return [{"NodeID": "a", "Alive": True, "Resources": self.resources}, gone]

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: "a")

    def remote(self, kind: type) -> Any:
        return SimpleNamespace(options=self._options)

    def _options(self, **options: Any) -> Any:
        self.asked = options
        return SimpleNamespace(remote=self._actor)

    def _actor(self, index: int, settings: Settings) -> Any:
        taken: list[str] = []
        self.cells.append(taken)

        def take(cell: Cell) -> Any:
            taken.append(cell.id)
            return lambda: run_cell(cell)

        ready = SimpleNamespace(remote=lambda: None)
        return SimpleNamespace(run=SimpleNamespace(remote=take), ready=ready)

    def wait(
        self, results: Sequence[Any], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Any], list[Any]]:
        if timeout == 0:
            return list(results), []
        if self.late:
            time.sleep(0.2)
        if self.silent or self.late:
            self.silent, self.late = max(0, self.silent - 1), max(0, self.late - 1)
            return [], list(results)
        return list(results[:1]), list(results[1:])

    def get(self, result: Any) -> CellOutcome:
        event = self.losses.pop(0) if self.losses else None
        if isinstance(event, Exception):
            raise event
        outcome: CellOutcome = event or result()
        return outcome

    def kill(self, actor: Any) -> None:
        self.killed += 1


def run(
    fake: FakeRay, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Result, list[Event]]:
    monkeypatch.setattr(ray, "import_ray", lambda: fake)
    events: list[Event] = []
    plan = load_plan({**TINY, "methods": ["tent"]})
    return run_plan(plan, folder, executor=RayCluster(**options), watch=events.append), events


def test_a_lost_cell_is_run_again_by_another_worker_and_written_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lost worker gets nothing more, and is ended in case it still lives."""
    fake = FakeRay([RayError("gone"), RayError("gone")])
    result, events = run(fake, tmp_path, monkeypatch)
    assert not result.failed
    first, second = (cell.id for cell in load_plan({**TINY, "methods": ["tent"]}).cells)
    assert fake.cells == [[first], [first], [first, second]]
    assert fake.killed == 2
    assert [event.cell.id for event in events if isinstance(event, Finished)] == [first, second]
    # Ray's own retries would be used up within seconds.
    assert (fake.asked["max_restarts"], fake.asked["max_task_retries"]) == (0, 0)
    assert fake.given["shut"]


def test_a_cell_that_loses_its_worker_for_good_is_recorded_and_the_next_gets_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason is the last line of Ray's message."""
    fake = FakeRay([RayError("long story\nthe machine burnt.")])
    result, _ = run(fake, tmp_path, monkeypatch, retries=0)
    assert [record.status for record in result.records] == ["failed", "done"]
    assert result.failed[0].error == "The cell was lost: its worker was lost once (the machine burnt)."
    assert [len(taken) for taken in fake.cells] == [1, 1]


def test_a_spent_worker_on_ray_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cell has a result and is not run again."""
    cells = load_plan({**TINY, "methods": ["tent"]}).cells
    fake = FakeRay([CellOutcome(run_cell(cells[0]).record, spent=True)])
    result, _ = run(fake, tmp_path, monkeypatch)
    assert not result.failed
    assert [len(taken) for taken in fake.cells] == [1, 1]
    assert fake.killed == 1


def test_workers_that_cannot_start_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster without the package is one sentence, not a failure of every cell."""
    fake = FakeRay([NoStart("No module named 'sicl'")])
    with pytest.raises(SiclError, match=r"cannot start on the Ray cluster \(No module named 'sicl'\)"):
        run(fake, tmp_path, monkeypatch)
    assert not list(tmp_path.glob("*seed*.json"))
    assert fake.given["shut"]


def test_a_cluster_without_room_is_waited_for_only_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster may grow when workers are asked for; if it does not, the run ends."""
    fake = FakeRay(resources={"CPU": 0.0}, silent=9)
    with pytest.raises(OptionError, match=r"no room for a cell, which takes 1 CPU;"):
        run(fake, tmp_path, monkeypatch)
    assert fake.cells == []
    with pytest.raises(OptionError, match="no room"):
        run(fake, tmp_path, monkeypatch, workers=2)
    assert len(fake.cells) == 2


def test_a_cluster_that_is_gone_ends_the_run_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The raylet was killed: nothing comes back and this machine is known as dead; waiting would be for ever."""
    monkeypatch.setattr(ray, "SILENCE_S", 0.0)
    monkeypatch.setattr(FakeRay, "get_runtime_context", lambda self: SimpleNamespace(get_node_id=lambda: "b"))
    with pytest.raises(SetupError, match="does not answer any more"):
        run(FakeRay(silent=99), tmp_path, monkeypatch)
    assert not list(tmp_path.glob("*seed*.json"))


def test_a_quiet_cluster_that_is_there_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long cell is no silence."""
    monkeypatch.setattr(ray, "SILENCE_S", 0.0)
    result, _ = run(FakeRay(silent=5), tmp_path, monkeypatch)
    assert not result.failed


def test_a_cell_over_its_time_goes_to_another_worker_and_then_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The late worker is ended; after the retries the reason is the limit."""
    fake = FakeRay(late=2)
    result, _ = run(fake, tmp_path / "a", monkeypatch, cell_timeout=0.1)
    assert not result.failed
    assert fake.killed == 1
    fake = FakeRay(late=4)
    result, _ = run(fake, tmp_path / "b", monkeypatch, cell_timeout=0.1, retries=1)
    assert result.failed[0].error == "The cell was lost: it took longer than 0.1 s 2 times."


def test_a_gpu_device_on_ray_needs_gpus() -> None:
    """Without any, Ray would hide them all; and it is Ray that chooses which."""
    assert RayCluster()._gpus(Settings(device="cuda")) == 1.0
    assert RayCluster()._gpus(Settings()) == 0.0
    RayCluster(gpus=0.25).check(Settings(device="cuda"))
    with pytest.raises(OptionError, match="share a GPU"):
        RayCluster(gpus=0).check(Settings(device="cuda"))
    with pytest.raises(OptionError, match="must be cuda on Ray"):
        RayCluster().check(Settings(device="cuda:1"))


def test_auto_on_a_cluster_looks_at_the_cluster() -> None:
    """The machine that starts a run may have no GPU."""
    auto, cpu, gpu = Settings(device="auto"), [{"CPU": 2.0}], [{"CPU": 2.0}, {"CPU": 8.0, "GPU": 1.0}]
    assert RayCluster()._device(auto, cpu) == "cpu"
    assert RayCluster()._device(auto, gpu) == "cuda"
    assert RayCluster(gpus=0)._device(auto, gpu) == "cpu"
    assert RayCluster(gpus=0.5)._device(auto, cpu) == "cuda"
    assert RayCluster()._device(Settings(), gpu) == "cpu"


def test_a_cluster_has_room_for_as_many_cells_as_its_scarcest_resource() -> None:
    """Fractions of a GPU count, but none is put together from two GPUs or two nodes."""
    nodes = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 1.0}]
    assert _room(nodes, {"CPU": 1.0, "GPU": 0.0}) == 9
    assert _room(nodes, {"CPU": 0.1, "GPU": 0.0}) == 90
    assert _room(nodes, {"CPU": 1.0, "GPU": 0.5}) == 4
    assert _room(nodes, {"CPU": 1.0, "GPU": 0.4}) == 4
    assert _room(nodes, {"CPU": 3.0, "GPU": 0.25}) == 2
    assert _room(nodes, {"CPU": 9.0, "GPU": 0.0}) == 0
    assert _room([{"CPU": 8.0}], {"CPU": 1.0, "GPU": 0.25}) == 0


def test_a_cluster_of_our_own_is_local_and_workers_find_what_this_process_finds() -> None:
    """Modules that a plan names may lie in the folder the run was started from; the interpreter's do not travel."""
    local = FakeRay()
    connect(local, None)
    assert local.given["address"] == "local"
    given = local.given["runtime_env"]["env_vars"]["PYTHONPATH"].split(":")
    assert given == [*own_paths(), "${PYTHONPATH}"]
    assert str(Path(__file__).parent) in given
    assert not [path for path in given if path.endswith("site-packages")]


def test_the_address_of_a_cluster_reaches_ray_and_a_refusal_is_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What Ray says is part of the sentence, on one line."""
    monkeypatch.setattr(cluster, "require_answer", lambda address: None)
    fake = FakeRay()
    connect(fake, "ray://host:10001")
    assert fake.given["address"] == "ray://host:10001"
    assert "include_dashboard" not in fake.given
    with pytest.raises(OptionError, match=r"'auto' \(Version mismatch: Ray 2.9\); check `address`"):
        connect(FakeRay(error=RuntimeError("Version mismatch:\n  Ray 2.9.\n")), "auto")


@pytest.mark.parametrize("address", ["localhost", "http://host:6379", "host:", "ray://host", "a b:1", ""])
def test_an_address_is_auto_or_a_host_and_a_port(address: str) -> None:
    """Anything else is refused before Ray looks for it."""
    with pytest.raises(OptionError, match="must be auto, HOST:PORT or ray://HOST:PORT"):
        require_answer(address)


def test_rays_client_is_named_when_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package ray alone cannot speak to ray:// addresses."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r'pip install "ray\[client\]"'):
        require_answer("ray://127.0.0.1:10001")


def test_a_port_where_nobody_listens_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray alone would try for minutes."""
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begun = time.monotonic()
    with pytest.raises(OptionError, match=rf"at '127.0.0.1:{port}' \(Connection refused\)"):
        require_answer(f"127.0.0.1:{port}")
    assert time.monotonic() - begun < 12


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (
            "sys.stderr.write('RPC error: InvalidAuthToken'); sys.stderr.flush(); time.sleep(60)",
            "RAY_AUTH_MODE=token",
        ),
        (
            "sys.stdout.write('enabled but no authentication token was found'); sys.exit(1)",
            "RAY_AUTH_MODE=token",
        ),
        ("time.sleep(60)", "no answer within 1 s"),
        ("sys.stdout.write('Version mismatch:\\n Ray 2.9'); sys.exit(1)", r"\(Version mismatch: Ray 2.9\)"),
        ("import os; os.abort()", "exit code -6"),
    ],
)
def test_a_cluster_that_does_not_let_us_in_is_one_sentence_in_bounded_time(
    program: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever Ray does in the process that asks: wait, fail or crash."""
    monkeypatch.setattr(cluster, "PROBE", f"import sys, time; {program}")
    monkeypatch.setattr(cluster, "PATIENCE_S", 1.0)
    begun = time.monotonic()
    with pytest.raises(OptionError, match=expected) as caught:
        require_answer("auto")
    assert "\n" not in str(caught.value)
    assert time.monotonic() - begun < 10


def test_a_cluster_that_answers_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that asks is given the address."""
    monkeypatch.setattr(cluster, "PROBE", "import sys; sys.exit(sys.argv[1] != 'auto')")
    require_answer("auto")
