"""A run as the command line shows it: the plan before, progress meanwhile, a summary after."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sicl.bench.executors import Event, Executor, Finished, Settings
from sicl.bench.plan.cost import estimate, shape
from sicl.bench.plan.plan import Plan
from sicl.bench.plan.registry import own_modules
from sicl.bench.run.progress import Display, duration, make_console
from sicl.bench.run.runner import Result, run_plan
from sicl.bench.run.schema import Record
from sicl.bench.run.store import Store


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


def show_plan(plan: Plan, console: Console | None = None) -> None:
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
    plan: Plan,
    folder: Path,
    *,
    executor: Executor,
    data: Path | None = None,
    device: str = "auto",
    threads: int | None = None,
    predictions: bool = False,
    cache: Path | None = None,
    retry_failed: bool = False,
    console: Console | None = None,
    show: Callable[[Result, Console], None] | None = None,
    title: str | None = None,
) -> Result:
    """Run a plan under a live display, print its summary, and write its report into the folder, also meanwhile."""
    console = console or make_console()
    settings = Settings(
        data=str(data.absolute()) if data else None,
        device=device,
        predictions=predictions,
        cache=str(cache.absolute()) if cache else None,
        threads=threads,
    )
    report = LiveReport(plan, folder, title=title)
    with Display(console) as display:

        def watch(event: Event) -> None:
            display.watch(event)
            report.watch(event)

        result = run_plan(
            plan,
            folder,
            executor=executor,
            settings=settings,
            retry_failed=retry_failed,
            watch=watch,
            on_start=display.start,
        )
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
        plan: Plan,
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
        cells = f"{len(group.done)} of {len(group.records)}" if group.done != group.records else None
        means = [
            mean_accuracy(group.records),
            *(mean_metric(group.records, n, "cumulative_ece") for n in names),
        ]
        numbers = ["-" if mean.value is None else f"{100 * mean.value:.1f}" for mean in means]
        what = (group.dataset, group.model, group.method, group.stream)
        table.add_row(*map(Text, what), cells or str(len(group.records)), *numbers)
    console.print(table)
    console.print("Accuracy and cumulative ECE in %, means over the cells that are done.")
    show_failures(result, console)


def show_failures(result: Result, console: Console) -> None:
    """Print the reason of every cell that failed."""
    for record in result.failed:
        console.print(f"FAILED {record.label}: {record.error}", style="red", markup=False, emoji=False)
    if result.failed:
        console.print(f"{len(result.failed)} cells failed; --retry-failed runs them again.")
