"""Tables of numbers: pivots of records, written as CSV and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from sicl.bench.run.schema import Record

Cells = Iterator[tuple[Record, str, dict[str, Any]]]
Row = tuple[str, tuple[float | None, ...]]
Pick = Callable[[Record, str, dict[str, Any]], Any]


@dataclass(frozen=True)
class Sheet:
    """A table: named rows and columns of numbers, None where there is none.

    Args:
        name: a word for its file.
        title: what it shows.
        corner: what the rows are.
        columns: their names.
        rows: (name, a number for each column).
        note: what the reader must know, the missing cells above all.
        digits: decimals of a number that is not whole; None: as many as small numbers need.
        drawn: the columns that are drawn; all unless given.
    """

    name: str
    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    digits: int | None = 1
    drawn: tuple[str, ...] = ()

    def to_csv(self) -> str:
        """Return the sheet as CSV."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow((self.corner, *self.columns))
        for name, values in self.rows:
            writer.writerow((name, *("" if value is None else repr(round(value, 6)) for value in values)))
        return out.getvalue()

    def to_markdown(self) -> str:
        """Return the sheet as a Markdown section."""
        lines = [f"## {self.title}", "", f"| {self.corner} | " + " | ".join(self.columns) + " |"]
        lines.append("|---|" + "---:|" * len(self.columns))
        for name, values in self.rows:
            lines.append(f"| {name} | " + " | ".join(number(value, self.digits) for value in values) + " |")
        return "\n".join([*lines, "", self.note, ""])


def number(value: float | None, digits: int | None = None) -> str:
    """Return a number with as many digits as a reader wants; a count has none."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    if digits is not None:
        return f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0: no "-0.0".
    return f"{value:.1f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def each(records: Sequence[Record]) -> Cells:
    """Yield every calibrator's numbers of every finished cell."""
    for record in records:
        for name, row in record.calibrators.items():
            yield record, name, row


def pivot(
    records: Sequence[Record],
    *,
    name: str,
    title: str,
    row: tuple[str, Pick],
    column: Pick,
    value: Pick,
    note: str = "",
    digits: int | None = 1,
) -> Sheet:
    """Return the mean of `value` for each (row, column), in the order they come.

    A pick that returns None leaves its cell out. Failed cells are counted in the note.
    """
    found: dict[Any, dict[Any, list[float]]] = {}
    columns: dict[Any, None] = {}
    for cell in each(records):
        where, what, number_ = row[1](*cell), column(*cell), value(*cell)
        if where is None or what is None:
            continue
        columns.setdefault(what)
        kept = found.setdefault(where, {}).setdefault(what, [])
        if number_ is not None:
            kept.append(float(number_))
    rows = tuple(
        (str(where), tuple(mean(values[what]) if values.get(what) else None for what in columns))
        for where, values in found.items()
    )
    told = " ".join((note, over(records))).strip()
    return Sheet(name, title, row[0], tuple(map(str, columns)), rows, told, digits)


def over(records: Sequence[Record]) -> str:
    """Say how many cells the means are over."""
    failed = sum(record.status == "failed" for record in records)
    done = len(records) - failed
    return f"Over {done} of {len(records)} cells" + (f" ({failed} failed)." if failed else ".")
