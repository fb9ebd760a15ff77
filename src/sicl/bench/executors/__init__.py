"""Where cells run: in this process, in several, or on a Ray cluster; the same results from all."""

from __future__ import annotations

import math

from sicl.bench.executors.base import Event, Executor, Finished, Settings, Started, Stepped
from sicl.bench.executors.local import Inline, Processes
from sicl.bench.executors.ray import RayCluster
from sicl.errors import OptionError, require_choice, require_positive

__all__ = ["EXECUTORS", "Event", "Executor", "Finished", "Settings", "Started", "Stepped", "make_executor"]


EXECUTORS = ("inline", "processes", "ray")


def make_executor(
    name: str | None = None,
    *,
    workers: int | None = None,
    address: str | None = None,
    gpus: float | None = None,
    cpus: float = 1.0,
    retries: int = 2,
    cell_timeout: float | None = None,
) -> Executor:
    """Return an executor; without a name, `workers` decides between this process and several.

    The options are those of `Processes` and `RayCluster`; what the chosen executor does not have is not looked at,
    but for a time limit or several workers, which need another process.
    """
    several = cell_timeout is not None or (workers is not None and workers > 1)
    chosen = name or ("processes" if several else "inline")
    require_choice(EXECUTORS, executor=chosen)
    require_positive(workers=1 if workers is None else workers)
    if retries < 0:
        raise OptionError(f"`retries` must be >= 0, got {retries!r}.")
    if cell_timeout is not None and not 0 < cell_timeout < math.inf:
        raise OptionError(f"`cell_timeout` must be > 0 seconds, got {cell_timeout!r}.")
    if chosen == "inline":
        if cell_timeout is not None:
            raise OptionError('`cell_timeout` needs a worker that can be ended; use executor "processes".')
        if workers not in (None, 1):
            raise OptionError(f'`workers` must be 1 with executor "inline", got {workers}; use "processes".')
        return Inline()
    if chosen == "processes":
        return Processes(workers=workers or 1, retries=retries, cell_timeout=cell_timeout)
    return RayCluster(
        workers=workers, address=address, gpus=gpus, cpus=cpus, retries=retries, cell_timeout=cell_timeout
    )
