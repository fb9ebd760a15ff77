"""What an executor takes and tells: settings and cells in, events out."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from sicl.bench.plan.cell import Cell
from sicl.errors import SetupError

if TYPE_CHECKING:
    from sicl.bench.run.run import CellOutcome, Progress
    from sicl.bench.run.shelf import Shelf

MOST_THREADS = 4096


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How cells are run; nothing of it is part of what they are.

    Args:
        data: the folder with the data; None means SICL_DATA or ~/.cache/sicl.
        device: "cpu", "cuda" (the workers share the GPUs), "cuda:1", "mps", or "auto".
        predictions: keep every sample's prediction.
        cache: a folder for corrupted images, shared between workers and runs; None keeps them in memory.
        threads: CPU threads a worker; None means OMP_NUM_THREADS, or the cores divided among the workers.
    """

    data: str | None = None
    device: str = "cpu"
    predictions: bool = False
    cache: str | None = None
    threads: int | None = None

    def check(self) -> None:
        """Refuse settings with which no cell could run, before any does.

        Raises:
            SetupError: what is wrong.
        """
        if self.threads is not None and not 0 < self.threads <= MOST_THREADS:
            raise SetupError(f"`threads` must lie in [1, {MOST_THREADS}], got {self.threads}.")
        for name in ("data", "cache"):
            given = getattr(self, name)
            if given is not None and os.path.exists(given) and not os.path.isdir(given):
                raise SetupError(f"`{name}` must be a folder, got the file `{given}`.")
        if self.cache is not None:
            try:
                os.makedirs(self.cache, exist_ok=True)
                with tempfile.TemporaryFile(dir=self.cache):
                    pass
            except (OSError, ValueError) as error:
                raise SetupError(f"`cache` cannot be used: {error}; give another folder.") from error

    def shelf(self, worker: int = 0) -> Shelf:
        """Return an empty shelf for one worker, in the worker's own process."""
        import torch

        from sicl.bench.run.machine import choose_device, device_of_worker
        from sicl.bench.run.shelf import Shelf

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        device = device_of_worker(choose_device(self.device), worker, torch.cuda.device_count())
        return Shelf(self.data, device, self.cache)


@dataclass(frozen=True)
class Started:
    """A worker has begun a cell."""

    cell: Cell
    worker: int


@dataclass(frozen=True)
class Stepped:
    """A worker has done another batch of its cell."""

    cell: Cell
    worker: int
    progress: Progress


@dataclass(frozen=True)
class Finished:
    """A cell is done, or failed."""

    cell: Cell
    worker: int
    outcome: CellOutcome


Event = Started | Stepped | Finished
Emit = Callable[[Event], None]


class Executor(Protocol):
    """Runs cells in any order and tells what happens; every cell finishes exactly once."""

    def check(self, settings: Settings) -> None:
        """Refuse settings with which no cell could run."""
        ...

    def run(self, cells: Sequence[Cell], settings: Settings, emit: Emit) -> None:
        """Run the cells and tell `emit` what happens; an exception stops the workers."""
        ...


class Waiting:
    """Cells that wait for a worker; one whose worker was lost is tried again, but not for ever.

    Args:
        cells: in the order they are handed out.
        retries: how often one is tried again.
    """

    def __init__(self, cells: Sequence[Cell], retries: int) -> None:
        self._cells, self._retries = list(cells)[::-1], retries
        self._lost: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._cells)

    def pop(self) -> Cell:
        """Return the next cell, which waits no more."""
        return self._cells.pop()

    def lose(self, cell: Cell, reason: str, cause: str = "") -> CellOutcome | None:
        """Let a lost cell wait again; after its last try return its failure, so that it stays in every average."""
        from sicl.bench.run.record import Recorder
        from sicl.bench.run.run import CellOutcome

        lost = self._lost[cell.id] = self._lost.get(cell.id, 0) + 1
        if lost <= self._retries:
            self._cells.append(cell)
            return None
        told = f"The cell was lost: {reason} {'once' if lost == 1 else f'{lost} times'}{cause}."
        return CellOutcome(Recorder(**cell.identity).failed(told, spec=dict(cell.spec)))
