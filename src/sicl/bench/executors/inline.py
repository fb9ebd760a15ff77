"""Run cells one after the other in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sicl.bench.executors.base import Emit, Finished, Settings, Started, Stepped
from sicl.bench.plan.cell import Cell
from sicl.bench.run.device import choose_device
from sicl.errors import SiclError


@dataclass(frozen=True, kw_only=True)
class Inline:
    """One cell at a time, here: no other process, the easiest to debug."""

    def check(self, settings: Settings) -> None:
        """Refuse a device that is not here."""
        choose_device(settings.device)

    def run(self, cells: Sequence[Cell], settings: Settings, emit: Emit) -> None:
        """Run the cells; see `Executor`."""
        from sicl.bench.run.run import Progress, run_cell

        shelf = settings.shelf()
        for cell in cells:
            emit(Started(cell, 0))

            def step(progress: Progress, cell: Cell = cell) -> None:
                emit(Stepped(cell, 0, progress))

            outcome = run_cell(cell, shelf, predictions=settings.predictions, on_batch=step)
            emit(Finished(cell, 0, outcome))
            if outcome.spent:
                raise SiclError(
                    f"{shelf.device} does not answer this process any more, after {cell.label} failed "
                    f"({outcome.record.error}); the same command goes on with the next cell."
                )
