"""A run as the command line shows it: the plan before, progress meanwhile, a summary after."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table
from rich.text import Text

from sicl.bench.executors import Event, Executor, Finished, Settings, Started, Stepped
from sicl.bench.plan.cost import estimate, shape
from sicl.bench.plan.plan import BenchPlan
from sicl.bench.plan.registry import own_modules
from sicl.bench.run.runner import Result, run_plan
from sicl.bench.run.schema import Record
from sicl.bench.run.store import Store

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


def find_own_modules(*folders: Path) -> None:
    """Let a plan name modules that lie beside it or in the current folder."""
    for folder in (*folders, Path.cwd()):
        if str(folder.absolute()) not in sys.path:
            sys.path.append(str(folder.absolute()))


def show_modules(table: Mapping[str, Any], console: Console | None = None) -> None:
    """Print which modules a plan imports when it is checked and run: their code is trusted then."""
    modules = own_modules(table)
    told = f"imports {', '.join(modules)}" if modules else "imports no modules of its own"
    (console or make_console()).print(f"The plan {told}.", markup=False, emoji=False)


def show_plan(plan: BenchPlan, console: Console | None = None) -> None:
    """Print what a plan would run, and roughly what that costs."""
    console = console or make_console()
    console.print(f"{plan.name}: {len(plan)} cells", style="bold", markup=False)
    table = Table(box=None, show_header=False)
    for noun, counts in shape(plan).items():
        table.add_row(noun, Text(", ".join(f"{name} ({count})" for name, count in counts.items())))
    labels = list(plan.cells[0].spec["calibrators"])
    table.add_row("calibrators", Text(("; " if any("," in label for label in labels) else ", ").join(labels)))
    table.add_row("predict", ", ".join(sorted({c.spec["method"]["options"]["predict"] for c in plan.cells})))
    console.print(table)
    for cell in plan.cells[:5]:
        console.print(f"  {cell.label}", markup=False, emoji=False)
    if len(plan) > 5:
        console.print(f"  ... and {len(plan) - 5} more")
    cost = estimate(plan)
    console.print(
        f"{cost.images:,} images, {cost.passes:,.0f} forward passes: roughly "
        f"{duration(cost.seconds('cpu'))} on one CPU core, {duration(cost.seconds('cuda'))} on one GPU."
    )


def run_live(
    plan: BenchPlan,
    folder: Path,
    *,
    executor: Executor,
    settings: Settings,
    retry_failed: bool = False,
    console: Console | None = None,
    show: Callable[[Result, Console], None] | None = None,
    title: str | None = None,
) -> Result:
    """Run a plan under a live display, print its summary, and write its report into the folder, also meanwhile."""
    console = console or make_console()
    report = LiveReport(plan, folder, title=title)
    with Display(console) as display:

        def watch(event: Event) -> None:
            display.watch(event)
            report.watch(event)

        how: dict[str, Any] = {"executor": executor, "settings": settings, "retry_failed": retry_failed}
        result = run_plan(plan, folder, watch=watch, on_start=display.start, **how)
    (show or show_summary)(result, console)
    told = f"Records in {folder}, report in {report.write(result.records)}."
    console.print(told, markup=False, emoji=False)
    return result


class LiveReport:
    """The report of a run while it runs, so that a long one can be looked at; it says how many cells are missing.

    Args:
        plan: what is run.
        folder: where the records are, and the report goes.
        clock: the time in seconds.
        title: the report's heading; else the plan's name.
    """

    PAUSE_S = 60.0
    SHARE = 0.02

    def __init__(
        self,
        plan: BenchPlan,
        folder: Path,
        clock: Callable[[], float] = time.monotonic,
        title: str | None = None,
    ) -> None:
        self._title = title or plan.name
        self._plan, self._store, self._clock = plan, Store(folder), clock
        self._next = clock() + self.PAUSE_S

    def watch(self, event: Event) -> None:
        """Write the report when a cell is done and the last one is old; that never takes much of the run's time."""
        if not isinstance(event, Finished) or (begun := self._clock()) < self._next:
            return
        found = self._store.done(self._plan.cells, predictions=False, retry_failed=False)
        self.write(tuple(found.values()))
        ended = self._clock()
        self._next = ended + max(self.PAUSE_S, (ended - begun) / self.SHARE)

    def write(self, records: Sequence[Record]) -> Path:
        """Write the report of these records and return its path."""
        from sicl.bench.report import write_report

        path = self._store.folder / "report.html"
        return write_report(records, path, title=self._title, planned=len(self._plan))


def show_summary(result: Result, console: Console) -> None:
    """Print accuracy and mean ECE of every method, and every failure."""
    from sicl.bench.tables.summary import calibrators_of, group_records, mean_accuracy, mean_metric

    names = calibrators_of(result.records)
    table = Table(box=None)
    for head in ("data set", "model", "method", "stream", "cells", "acc", *names):
        table.add_column(Text(head))
    for group in group_records(result.records):
        done, total = len(group.done), len(group.records)
        eces = [mean_metric(group.records, name, "cumulative_ece") for name in names]
        numbers = [_percent(mean.value) for mean in (mean_accuracy(group.records), *eces)]
        what = (group.dataset, group.model, group.method, group.stream)
        table.add_row(*map(Text, what), str(total) if done == total else f"{done} of {total}", *numbers)
    console.print(table)
    console.print("Accuracy and cumulative ECE in %, means over the cells that are done.")
    show_failures(result, console)


def show_failures(result: Result, console: Console) -> None:
    """Print the reason of every cell that failed."""
    for record in result.failed:
        console.print(f"FAILED {record.label}: {record.error}", style="red", markup=False, emoji=False)
    if result.failed:
        console.print(f"{len(result.failed)} cells failed; --retry-failed runs them again.")
