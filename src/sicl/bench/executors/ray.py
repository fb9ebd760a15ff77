"""Run cells on a Ray cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from sicl.bench.cell import Cell
from sicl.bench.executors.base import Emit, Finished, Settings, Started
from sicl.bench.executors.lost import lost_cell
from sicl.errors import OptionError, require_positive


@dataclass(frozen=True, kw_only=True)
class RayCluster:
    """Workers on a Ray cluster, each with its own loaded data and models; Ray replaces those it loses.

    Every machine of the cluster needs `sicl`, the data and the weights at the same paths; the records are written
    by the process that started the run.

    Args:
        workers: cells at the same time; None: as many as fit on the cluster.
        address: of the cluster ("auto", "ray://host:10001"); None starts one on this machine.
        gpus: GPUs a cell takes; a fraction lets cells share one.
        cpus: CPUs a cell takes.
        retries: how often a cell is tried again after its worker was lost.
    """

    workers: int = 0
    address: str | None = None
    gpus: float = 0.0
    cpus: float = 1.0
    retries: int = 2
