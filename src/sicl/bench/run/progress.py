"""The live display of a run: cells done, what each worker is at, time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from sicl.bench.executors import Event, Finished, Started, Stepped

if TYPE_CHECKING:
    from sicl.bench.run.schema import Record


WIDE = 180


def make_console(file: IO[str] | None = None, width: int | None = None) -> Console:
    """Return the standard output; a file or pipe is taken to be wide enough for a table with all calibrators.

    Square brackets and colons are text: labels and errors are the user's, and never markup.
    """
    console = Console(file=file, width=width, highlight=False, markup=False, emoji=False)
    if not console.is_terminal and width is None:
        console.width = max(WIDE, console.width)
    return console


class Display:
    """Shows a run on a terminal; elsewhere it prints a line for each finished cell.

    Args:
        console: where to; default the standard output.
        clock: the time in seconds.
    """

    def __init__(self, console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.console = console or make_console()
        self._clock = clock
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._rows: dict[int, TaskID] = {}
        self._all: TaskID | None = None
        self._begun = 0.0
        self._done = self._total = 0

    def __enter__(self) -> Display:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def start(self, missing: int, total: int) -> None:
        """Say how many cells there are to run."""
        self._begun, self._total = self._clock(), missing
        kept = f", {total - missing} are there already" if missing < total else ""
        self.console.print(f"{missing} cells to run{kept}.")
        self._all = self._bars.add_task("cells", total=missing, note="")

    def watch(self, event: Event) -> None:
        """Show one event."""
        if isinstance(event, Started):
            self._row(event.worker, event.cell.label)
        elif isinstance(event, Stepped):
            step = event.progress
            note = f"acc {_percent(step.accuracy)}  ECE {_percent(step.ece)}"
            row = self._row(event.worker, None)
            self._bars.update(row, completed=step.batches, total=step.total, note=note)
        elif isinstance(event, Finished):
            self._finish(event)

    def _row(self, worker: int, label: str | None) -> TaskID:
        if worker not in self._rows:
            self._rows[worker] = self._bars.add_task(label or "", total=None, note="")
        elif label is not None:
            self._bars.update(self._rows[worker], description=label, completed=0, total=None, note="")
        return self._rows[worker]

    def _finish(self, event: Finished) -> None:
        self._done += 1
        left = (self._clock() - self._begun) / self._done * (self._total - self._done)
        if self._all is not None:
            self._bars.update(self._all, completed=self._done, note=f"{duration(left)} left")
        line = f"{event.cell.label}: {describe(event.outcome.record)}"
        style = "red" if event.outcome.record.status == "failed" else None
        if not self.console.is_terminal:
            line, style = f"[{self._done}/{self._total}] {line} ({duration(left)} left)", None
        self.console.print(
            line, style=style, markup=False, emoji=False, soft_wrap=not self.console.is_terminal
        )


def describe(record: Record) -> str:
    """Return a cell's result in a few words."""
    if record.status == "failed":
        return f"FAILED: {record.error}"
    eces = ", ".join(f"{name} {_percent(row.get('ece'))}" for name, row in record.calibrators.items())
    return f"accuracy {_percent(record.accuracy)} %, ECE {eces} %"


def duration(seconds: float) -> str:
    """Return a time for people: 42 s, 3 min, 2.5 h, 12 days."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    hours = seconds / 3600
    return f"{hours:.1f} h" if hours < 72 else f"{hours / 24:,.0f} days"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"
