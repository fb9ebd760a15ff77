"""The outcome of a cell whose worker never came back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sicl.bench.plan.cell import Cell

if TYPE_CHECKING:
    from sicl.bench.run.run import Outcome


def often(times: int) -> str:
    """Return a count in words: once, or 3 times."""
    return "once" if times == 1 else f"{times} times"


def lost_cell(cell: Cell, reason: str) -> Outcome:
    """Return a failed outcome; a lost cell stays visible in every average."""
    from sicl.bench.run.record import Recorder
    from sicl.bench.run.run import Outcome

    return Outcome(Recorder(**cell.identity).failed(f"The cell was lost: {reason}.", spec=dict(cell.spec)))
