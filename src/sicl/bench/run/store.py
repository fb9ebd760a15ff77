"""The folder of a run: one record a cell, written atomically; what is there is done."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sicl.bench.plan.cell import Cell
from sicl.bench.plan.plan import BenchPlan
from sicl.bench.run.schema import Record
from sicl.data.files import write_atomic
from sicl.errors import DataError

if TYPE_CHECKING:
    from sicl.bench.run.run import CellOutcome

LOCK = ".lock"
CACHE = ".cache"


class Store:
    """Records by cell id in one folder.

    Args:
        folder: made when the first record is written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def path(self, cell: Cell) -> Path:
        """Where a cell's record is."""
        return self.folder / f"{cell.id}.json"

    def predictions_path(self, cell: Cell) -> Path:
        """Where a cell's predictions are, if they were asked for."""
        return self.folder / "predictions" / f"{cell.id}.npz"

    def read(self, cell: Cell) -> Record | None:
        """Return a cell's record, or None if it has not been run.

        Raises:
            DataError: the file is damaged, edited, or another cell's.
        """
        path = self.path(cell)
        try:
            record = Record.from_json(path.read_bytes().decode("utf-8", "replace"))
            if record.cell_id != cell.id:
                raise DataError(f"It is the record of another cell, {record.label}.")
        except FileNotFoundError:
            return None
        except DataError as error:
            raise DataError(
                f"`{path}` cannot be read: {error} Remove the file to run its cell again."
            ) from error
        return record

    def write(self, cell: Cell, outcome: CellOutcome) -> str:
        """Keep a cell's predictions, then its record: a record that is there is complete. Returns its text."""
        if outcome.predictions is not None:
            write_atomic(self.predictions_path(cell), outcome.predictions)
        text = outcome.record.to_json()
        write_atomic(self.path(cell), text)
        return text

    def done(self, cells: Iterable[Cell], *, predictions: bool, retry_failed: bool) -> dict[str, Record]:
        """Return the records, by cell id, of the cells that need not be run."""
        found = ((cell, record) for cell in cells if (record := self.read(cell)) is not None)
        return {
            cell.id: record
            for cell, record in found
            if self._is_enough(cell, record, predictions, retry_failed)
        }

    def _is_enough(self, cell: Cell, record: Record, predictions: bool, retry_failed: bool) -> bool:
        if record.status == "failed":
            return not retry_failed
        return not predictions or self.predictions_path(cell).is_file()

    def write_plan(self, plan: BenchPlan) -> None:
        """Keep the plan beside its results, for whoever finds them."""
        ids = [cell.id for cell in plan.cells]
        content = {"plan": plan.name, "table": plan.table, "cells": len(plan), "ids": ids}
        text = json.dumps(content, indent=1, default=str)
        write_atomic(self.folder / f"plan-{_word(plan.name)}.json", text + "\n")

    def clean(self) -> None:
        """Remove what a killed run left half-written; call it while the folder is locked."""
        for folder in (self.folder, self.folder / "predictions"):
            for part in folder.glob("*.part"):
                part.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out of the folder; the system lets go when the process ends, however it ends.

        Raises:
            DataError: another run is writing there.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / LOCK).open("w") as file:
            _lock(file.fileno(), self.folder)
            yield


def _lock(descriptor: int, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows has no such locks; two runs there must use two folders.
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise DataError(
            f"another run is writing into `{folder}`; wait for it or give another folder."
        ) from error


def _word(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-." else "-" for letter in name)
