"""Run a plan into a folder: what is missing is run, what is there is kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sicl.bench.executors import Event, Executor, Finished, Settings, make_executor
from sicl.bench.executors.base import Emit
from sicl.bench.executors.local import Processes
from sicl.bench.plan.cell import Cell
from sicl.bench.plan.plan import BenchPlan
from sicl.bench.run.schema import Record
from sicl.bench.run.store import CACHE, Store
from sicl.errors import SetupError


@dataclass(frozen=True)
class Result:
    """What a run came to.

    Args:
        records: one a cell, in the plan's order.
        ran: how many of them were run now.
    """

    records: tuple[Record, ...]
    ran: int

    @property
    def failed(self) -> tuple[Record, ...]:
        """The records of cells that failed."""
        return tuple(record for record in self.records if record.status == "failed")


def run_plan(
    plan: BenchPlan,
    folder: str | os.PathLike[str],
    *,
    executor: Executor | None = None,
    settings: Settings | None = None,
    retry_failed: bool = False,
    watch: Callable[[Event], None] | None = None,
    on_start: Callable[[int, int], None] | None = None,
) -> Result:
    """Run the cells of a plan that the folder has no record of, and return the records of all.

    A run can be killed at any moment: the next one goes on where it stopped, and no cell is run twice.

    Raises:
        SetupError: the machine or its folders cannot run it; no cell is recorded as failed for that.

    Args:
        plan: what to run.
        folder: where the records go.
        executor: where cells run; default in this process.
        settings: how they run.
        retry_failed: run cells that failed before again.
        watch: told every event, after a finished cell has been written.
        on_start: told how many cells will run, and how many the plan has.
    """
    chosen, running = settings or Settings(), executor or make_executor()
    chosen.check()
    if not Path(folder).exists():
        # What cannot run is one sentence, and leaves no folder behind.
        running.check(chosen)
    store = Store(folder)
    with _on_disk(store.folder), store.locked():
        store.clean()
        store.write_plan(plan)
        done = store.done(plan.cells, predictions=chosen.predictions, retry_failed=retry_failed)
        missing = [cell for cell in plan.cells if cell.id not in done]
        if on_start is not None:
            on_start(len(missing), len(plan))

        def emit(event: Event) -> None:
            if isinstance(event, Finished):
                if event.outcome.fault is not None:
                    raise SetupError(f"{event.cell.label} cannot run: {event.outcome.fault}")
                done[event.cell.id] = Record.from_json(store.write(event.cell, event.outcome))
            if watch is not None:
                watch(event)

        if missing:
            _run(running, missing, chosen, emit, store.folder / CACHE)
    return Result(tuple(done[cell.id] for cell in plan.cells), len(missing))


@contextmanager
def _on_disk(folder: Path) -> Iterator[None]:
    """Turn what the system refuses while records are kept into one sentence."""
    try:
        yield
    except BrokenPipeError:  # Who read the output has gone; the records are well.
        raise
    except OSError as error:
        where = error.filename or folder
        raise SetupError(
            f"`{where}` cannot be used: {error.strerror or error}; mend that or give another folder, and the same "
            "command goes on where it stopped."
        ) from error


def _run(executor: Executor, cells: list[Cell], settings: Settings, emit: Emit, cache: Path) -> None:
    """Run cells; processes share made images through a folder that goes when all is done."""
    if settings.cache is not None or not isinstance(executor, Processes):
        executor.run(cells, settings, emit)
        return
    executor.run(cells, replace(settings, cache=str(cache.absolute())), emit)
    shutil.rmtree(cache, ignore_errors=True)
