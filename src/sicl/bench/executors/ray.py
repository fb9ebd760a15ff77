"""Run cells on a Ray cluster."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sicl.bench.cell import Cell
from sicl.bench.executors.base import Emit, Finished, Settings, Started
from sicl.bench.executors.lost import lost_cell
from sicl.errors import OptionError, require_positive

if TYPE_CHECKING:
    from sicl.bench.run import Outcome


@dataclass(frozen=True, kw_only=True)
class RayCluster:
    """Workers on a Ray cluster, each with its own loaded data and models; Ray replaces those it loses.

    Every machine of the cluster needs `sicl`, the data and the weights at the same paths; the records are written
    by the process that started the run.

    Args:
        workers: cells at the same time; None: as many as fit on the cluster.
        address: of the cluster ("auto", "ray://host:10001"); None starts one on this machine.
        gpus: the share of a GPU that a cell takes, up to 1. None: 1 on a GPU device, else 0.
        cpus: CPUs a cell takes.
        retries: how often a cell is tried again after its worker was lost.
    """

    workers: int | None = None
    address: str | None = None
    gpus: float | None = None
    cpus: float = 1.0
    retries: int = 2

    def __post_init__(self) -> None:
        require_positive(cpus=self.cpus)
        if self.gpus is not None and not 0 <= self.gpus <= 1:
            raise OptionError(
                f"`gpus` must lie in [0, 1], for a cell uses one GPU at most; got {self.gpus!r}."
            )

    def run(self, cells: Sequence[Cell], settings: Settings, emit: Emit) -> None:
        """Run the cells; see `Executor`."""
        ray = _import_ray()
        settings = replace(settings, threads=settings.threads or max(1, int(self.cpus)))
        self._check(settings)
        mine = not ray.is_initialized()
        if mine:
            _connect(ray, self.address)
        try:
            nodes = [dict(node["Resources"]) for node in ray.nodes() if node["Alive"]]
            settings = replace(settings, device=self._device(settings, nodes))
            needs = {"CPU": self.cpus, "GPU": self._gpus(settings)}
            count = min(self.workers or _room(nodes, needs), len(cells))
            _Pool(ray, list(cells), settings, emit, needs, self.retries).run(count)
        finally:
            if mine:
                ray.shutdown()

    def _check(self, settings: Settings) -> None:
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


class _Pool:
    """One cell at a time for each actor; Ray restarts an actor whose process or machine is lost."""

    def __init__(
        self,
        ray: Any,
        cells: list[Cell],
        settings: Settings,
        emit: Emit,
        needs: dict[str, float],
        retries: int,
    ) -> None:
        self._ray = ray
        self._waiting = cells[::-1]
        self._settings = settings
        self._emit = emit
        self._retries = retries
        self._actor = ray.remote(_Actor).options(
            num_cpus=needs["CPU"], num_gpus=needs["GPU"], max_restarts=-1, max_task_retries=retries
        )
        self._running: dict[Any, tuple[int, Any, Cell]] = {}

    def run(self, count: int) -> None:
        for index in range(count):
            self._hand_out(index, self._actor.remote(index, self._settings))
        while self._running:
            ready, _ = self._ray.wait(list(self._running), num_returns=1)
            index, actor, cell = self._running.pop(ready[0])
            try:
                outcome = self._ray.get(ready[0])
            except self._ray.exceptions.RayError as error:
                reason = str(error).strip().splitlines()[0]
                outcome = lost_cell(cell, f"its worker was lost {self._retries + 1} times ({reason})")
                actor = self._actor.remote(index, self._settings)
            self._emit(Finished(cell, index, outcome))
            if outcome.spent:
                self._ray.kill(actor)
                actor = self._actor.remote(index, self._settings)
            self._hand_out(index, actor)

    def _hand_out(self, index: int, actor: Any) -> None:
        if self._waiting:
            cell = self._waiting.pop()
            self._running[actor.run.remote(cell)] = (index, actor, cell)
            self._emit(Started(cell, index))


class _Actor:
    """A worker on the cluster."""

    def __init__(self, index: int, settings: Settings) -> None:
        self._settings = settings
        self._shelf = settings.shelf(index)

    def run(self, cell: Cell) -> Outcome:
        from sicl.bench.run import run_cell

        return run_cell(cell, self._shelf, predictions=self._settings.predictions)


def _import_ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise OptionError(
            'executor "ray" needs the package ray; install it with `pip install "sicl[ray]"`.'
        ) from error
    return ray


def _connect(ray: Any, address: str | None) -> None:
    # The workers must find what the plan names, also in the folder the run was started from.
    found = os.pathsep.join(dict.fromkeys(os.path.abspath(path) for path in sys.path))
    environment = {"env_vars": {"PYTHONPATH": found}}
    options: dict[str, Any] = {} if address else {"include_dashboard": False}
    try:
        ray.init(
            # Without "local" Ray would join, or wait for, whatever cluster this machine last had.
            address=address or "local",
            runtime_env=environment,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **options,
        )
    except (ConnectionError, ValueError) as error:
        raise OptionError(
            f"no Ray cluster answers at {address!r} ({error}); check `address`, and give Ray the cluster's "
            "authentication token if it asks for one."
        ) from error


def _room(nodes: Sequence[Mapping[str, float]], needs: Mapping[str, float]) -> int:
    """Return how many cells fit on the cluster at the same time; none is spread over two nodes or two GPUs."""
    room = 0
    for node in nodes:
        cpus = _times(node.get("CPU", 0), needs["CPU"])
        gpus = int(node.get("GPU", 0)) * _times(1, needs["GPU"]) if needs["GPU"] else cpus
        room += min(cpus, gpus)
    if room < 1:
        wanted = ", ".join(f"{amount:g} {name}" for name, amount in needs.items() if amount > 0)
        raise OptionError(f"the Ray cluster has no room for a cell, which takes {wanted}; ask for less.")
    return room


def _times(there: float, wanted: float) -> int:
    # Ray counts in ten thousandths; so 0.3 holds three times 0.1.
    return round(there * 10_000) // max(1, round(wanted * 10_000))
