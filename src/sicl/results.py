"""The records of a run as a table: `sicl.results.frame("runs/mine")`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sicl.bench.run.results import load_records
from sicl.bench.run.schema import IDENTITY, Record
from sicl.errors import OptionError

if TYPE_CHECKING:
    import pandas

_CELL = (*IDENTITY, "status", "error", "n", "n_ood")


def rows(folder: str | Path) -> list[dict[str, Any]]:
    """Return one dictionary for each record and calibrator: what the cell is, and its numbers.

    A failed cell is one row with its `error` and no calibrator, so that nothing is averaged over silence.

    Args:
        folder: where `sicl bench` or `sicl paper run` wrote its records.

    Raises:
        DataError: the folder is missing or holds no record.
    """
    return [row for record in load_records(folder) for row in _rows(record)]


def _rows(record: Record) -> Iterator[dict[str, Any]]:
    cell = {name: getattr(record, name) for name in _CELL}
    if not record.calibrators:
        yield {**cell, "calibrator": None}
    for name, metrics in record.calibrators.items():
        numbers = {key: value for key, value in metrics.items() if isinstance(value, int | float | None)}
        yield {**cell, "calibrator": name, **numbers}


def frame(folder: str | Path) -> pandas.DataFrame:
    """Return `rows` as a pandas table.

    Args:
        folder: as for `rows`.

    Raises:
        OptionError: pandas is not installed.
        DataError: as for `rows`.
    """
    try:
        library = importlib.import_module("pandas")
    except ImportError as error:
        raise OptionError(
            "`frame` needs pandas; install it with `pip install 'sicl[pandas]'`, or use `sicl.results.rows`."
        ) from error
    table: pandas.DataFrame = library.DataFrame(rows(folder))
    return table
