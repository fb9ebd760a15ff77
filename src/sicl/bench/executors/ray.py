"""Run cells on a Ray cluster."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sicl.bench.executors.base import Emit, Finished, Settings, Started, Waiting
from sicl.bench.executors.cluster import bounded, connect, import_ray, is_here
from sicl.bench.plan.cell import Cell
from sicl.errors import OptionError, SetupError, require_positive

if TYPE_CHECKING:
    from sicl.bench.run.run import CellOutcome

GROWTH_S = 900.0
"""How long a cluster without room may take to grow."""

BEAT_S, SILENCE_S = 5.0, 15.0
"""How often the cluster is looked at, and how long it may be silent."""


@dataclass(frozen=True, kw_only=True)
class RayCluster:
    """Workers on a Ray cluster, each with its own loaded data and models; Ray replaces those it loses.

    Every machine of the cluster needs `sicl`, the data and the weights at the same paths; the records are written
    by the process that started the run.

    Args:
        workers: cells at the same time; None: as many as fit on the cluster.
        address: of the cluster: "auto" or "host:6379" from a machine of the cluster, "ray://host:10001" from another;
            None starts one on this machine. A cluster that was there is left running.
        gpus: the share of a GPU that a cell takes, up to 1. None: 1 on a GPU device, else 0.
        cpus: CPUs a cell takes.
        retries: how often a cell is tried again after its worker was lost or took too long.
        cell_timeout: seconds a cell may take once its worker is there; None: as long as it likes.
    """

    workers: int | None = None
    address: str | None = None
    gpus: float | None = None
    cpus: float = 1.0
    retries: int = 2
    cell_timeout: float | None = None

    def __post_init__(self) -> None:
        require_positive(cpus=self.cpus)
        if self.gpus is not None and not 0 <= self.gpus <= 1:
            raise OptionError(
                f"`gpus` must lie in [0, 1], for a cell uses one GPU at most; got {self.gpus!r}."
            )

    def run(self, cells: Sequence[Cell], settings: Settings, emit: Emit) -> None:
        ray = import_ray()
        settings = replace(settings, threads=settings.threads or max(1, int(self.cpus)))
        self.check(settings)
        mine = not ray.is_initialized()
        if mine:
            connect(ray, self.address)
        try:
            nodes = [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]
            settings = replace(settings, device=self._device(settings, nodes))
            needs = {"CPU": self.cpus, "GPU": self._gpus(settings)}
            room = _room(nodes, needs)
            if not room and self.workers is None:
                raise OptionError(_no_room(needs))
            pool = _Actors(ray, Waiting(cells, self.retries), settings, emit, needs, self.cell_timeout)
            pool.run(min(self.workers or room, len(cells)), patience=None if room else GROWTH_S)
        finally:
            if mine:
                ray.shutdown()

    def check(self, settings: Settings) -> None:
        """Refuse what no cluster can do."""
        if settings.device.startswith("cuda:"):
            raise OptionError(
                f"`device` must be cuda on Ray, which chooses the GPU; got {settings.device!r}."
            )
        if settings.device == "cuda" and self.gpus == 0:
            raise OptionError("`gpus` must be > 0 with device cuda, got 0; 0.25 lets four cells share a GPU.")

    def _device(self, settings: Settings, nodes: Sequence[Mapping[str, float]]) -> str:
        """Return the workers' device; "auto" looks at the cluster, not at this machine."""
        if settings.device != "auto":
            return settings.device
        found = self.gpus is None and any(node.get("GPU", 0) > 0 for node in nodes)
        return "cuda" if self.gpus or found else "cpu"

    def _gpus(self, settings: Settings) -> float:
        return float(settings.device == "cuda") if self.gpus is None else self.gpus


class _Actors:
    """One cell at a time for each actor; a cell whose actor is lost goes to a new one."""

    def __init__(
        self,
        ray: Any,
        waiting: Waiting,
        settings: Settings,
        emit: Emit,
        needs: dict[str, float],
        limit: float | None,
    ) -> None:
        self._ray, self._waiting, self._settings, self._emit = ray, waiting, settings, emit
        self._needs, self._limit = needs, limit
        # Ray's own retries come within seconds and are used up before it has noticed that a machine is gone.
        self._actor = ray.remote(_Actor).options(
            num_cpus=needs["CPU"], num_gpus=needs["GPU"], max_restarts=0, max_task_retries=0
        )
        self._running: dict[Any, _Task] = {}

    def run(self, count: int, patience: float | None) -> None:
        actors = [self._actor.remote(index, self._settings) for index in range(count)]
        if patience is not None:
            started, _ = self._ray.wait([actor.ready.remote() for actor in actors], timeout=patience)
            if not started:
                raise OptionError(_no_room(self._needs))
        for index in range(count):
            # The list must not keep an actor that has nothing more to do: its place may be wanted.
            self._hand_out(index, actors.pop(0))
        seen, beat = time.monotonic(), min(BEAT_S, self._limit or BEAT_S)
        while self._running:
            # Never without a limit: a cluster that is gone does not say so, it only answers no more.
            ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=beat)
            for result in ready:
                task = self._running.pop(result)
                self._settle(task, self._outcome(result, task.cell))
            self._end_late()
            if ready or bounded(lambda: is_here(self._ray)):
                seen = time.monotonic()
            elif time.monotonic() - seen > SILENCE_S:
                raise SetupError(
                    "the Ray cluster does not answer any more, or this machine is no longer part of it; start it again "
                    "(`ray status` says how it is), and the same command goes on where it stopped."
                )

    def _end_late(self) -> None:
        """End the workers that have been at their cell for too long."""
        for result, task in list(self._running.items()):
            if task.begun is None and self._ray.wait([task.ready], timeout=0)[0]:
                task.begun = time.monotonic()
            late = task.begun is not None and time.monotonic() - task.begun > (self._limit or math.inf)
            if late:
                reason = f"it took longer than {self._limit:g} s"
                self._settle(self._running.pop(result), self._again(task.cell, reason))

    def _settle(self, task: _Task, outcome: CellOutcome | None) -> None:
        """Tell what came of a cell, and give its worker, or a new one, the next."""
        actor = task.actor
        if outcome is not None:
            self._emit(Finished(task.cell, task.index, outcome))
        if outcome is None or outcome.spent:
            # A worker that Ray has lost sight of may still be at its cell.
            self._ray.kill(actor)
            actor = self._actor.remote(task.index, self._settings) if self._waiting else None
        self._hand_out(task.index, actor)

    def _outcome(self, result: Any, cell: Cell) -> CellOutcome | None:
        """Return what came of a cell; None if its worker was lost and it is to be run again."""
        try:
            outcome: CellOutcome = self._ray.get(result)
        except self._ray.exceptions.RayError as error:
            if getattr(error, "actor_init_failed", False):
                raise SetupError(
                    f"a worker cannot start on the Ray cluster ({_last(error)}); every machine of it needs `sicl` and "
                    "the plan's own modules as this one has them, and a GPU if the device is cuda."
                ) from error
            return self._again(cell, "its worker was lost", f" ({_last(error)})")
        return outcome

    def _again(self, cell: Cell, reason: str, cause: str = "") -> CellOutcome | None:
        """Let a cell wait again, or give it up after its retries; its worker is not to be used again."""
        outcome = self._waiting.lose(cell, reason, cause)
        return None if outcome is None else replace(outcome, spent=True)

    def _hand_out(self, index: int, actor: Any) -> None:
        if self._waiting:
            cell = self._waiting.pop()
            ready = actor.ready.remote()
            self._running[actor.run.remote(cell)] = _Task(index, actor, cell, ready)
            self._emit(Started(cell, index))


@dataclass
class _Task:
    """A cell that a worker has; `begun` when the worker was there to begin it."""

    index: int
    actor: Any
    cell: Cell
    ready: Any
    begun: float | None = None


class _Actor:
    """A worker on the cluster."""

    def __init__(self, index: int, settings: Settings) -> None:
        self._settings = settings
        self._shelf = settings.shelf(index)

    def ready(self) -> None:
        """Answer once the worker is there."""

    def run(self, cell: Cell) -> CellOutcome:
        from sicl.bench.run.run import run_cell

        return run_cell(cell, self._shelf, predictions=self._settings.predictions)


def _last(error: Exception) -> str:
    """Return the last line of what Ray says: the cause, after a long stack."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rstrip(".") if lines else type(error).__name__


def _room(nodes: Sequence[Mapping[str, float]], needs: Mapping[str, float]) -> int:
    """Return how many cells fit on the cluster at the same time; none is spread over two nodes or two GPUs."""
    room = 0
    for node in nodes:
        cpus = _times(node.get("CPU", 0), needs["CPU"])
        gpus = int(node.get("GPU", 0)) * _times(1, needs["GPU"]) if needs["GPU"] else cpus
        room += min(cpus, gpus)
    return room


def _no_room(needs: Mapping[str, float]) -> str:
    wanted = ", ".join(f"{amount:g} {name}" for name, amount in needs.items() if amount > 0)
    return (
        f"the Ray cluster has no room for a cell, which takes {wanted}; ask for less, or give `workers` to wait for a "
        "cluster that grows."
    )


def _times(there: float, wanted: float) -> int:
    # Ray counts in ten thousandths; so 0.3 holds three times 0.1.
    return round(there * 10_000) // max(1, round(wanted * 10_000))
