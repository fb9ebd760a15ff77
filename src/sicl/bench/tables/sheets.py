"""Tables of numbers: pivots of records, written as CSV and Markdown."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby
from statistics import mean
from typing import Any, Literal

from sicl.bench.run.schema import Record
from sicl.bench.tables.names import csv_text, markdown_text

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
        best: "row" or "column": the lowest number of each is bold.
        aside: rows (or columns, if rows are compared) that are not compared, such as the accuracy.
    """

    name: str
    title: str
    corner: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    note: str = ""
    digits: int | None = 1
    best: Literal["", "row", "column"] = ""
    aside: tuple[str, ...] = ()

    @property
    def numeric(self) -> bool:
        """Say whether the rows are numbers, so that a line can be drawn through them."""
        try:
            return len({float(name) for name, _ in self.rows}) > 1
        except ValueError:
            return False

    def texts(self, mark: str = "**{}**") -> list[list[str]]:
        """Return every number as it is written, the best in bold."""
        if self.best == "column":
            return [list(texts) for texts in zip(*self.turned().texts(mark))]
        found = [[number(value, self.digits) for value in values] for _, values in self.rows]
        compared = [j for j, name in enumerate(self.columns) if self.best and name not in self.aside]
        for texts, (_, values) in zip(found, self.rows):
            known = [value for j in compared if (value := values[j]) is not None]
            lowest = number(min(known), self.digits) if known else ""
            for j in compared:
                if texts[j] == lowest:
                    texts[j] = mark.format(lowest)
        return found

    def turned(self) -> Sheet:
        """Return the sheet with rows and columns exchanged."""
        rows = tuple(
            (column, tuple(values[j] for _, values in self.rows)) for j, column in enumerate(self.columns)
        )
        other: dict[str, Literal["", "row", "column"]] = {"": "", "row": "column", "column": "row"}
        columns = tuple(name for name, _ in self.rows)
        return replace(self, columns=columns, rows=rows, best=other[self.best], corner="")

    def only(self, columns: Iterable[str]) -> Sheet:
        """Return the sheet with some of its columns, in that order; those it does not have are left out."""
        chosen = [self.columns.index(name) for name in columns if name in self.columns]
        rows = tuple((name, tuple(values[j] for j in chosen)) for name, values in self.rows)
        return replace(self, columns=tuple(self.columns[j] for j in chosen), rows=rows)

    def to_csv(self) -> str:
        """Return the sheet as CSV."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(map(csv_text, (self.corner, *self.columns)))
        for name, values in self.rows:
            writer.writerow(
                (csv_text(name), *("" if value is None else repr(round(value, 6)) for value in values))
            )
        return out.getvalue()

    def to_markdown(self) -> str:
        """Return the sheet as a Markdown section."""
        heads = " | ".join(markdown_text(name) for name in (self.corner, *self.columns))
        lines = [f"## {markdown_text(self.title)}", "", f"| {heads} |"]
        lines.append("|---|" + "---:|" * len(self.columns))
        for (name, _), values in zip(self.rows, self.texts()):
            lines.append(f"| {markdown_text(name)} | " + " | ".join(values) + " |")
        return "\n".join([*lines, "", self.note, ""])

    def to_html(self) -> str:
        """Return the sheet as a part of a page: networks above their methods; it scrolls sideways if too wide."""
        rows = "".join(
            f'<tr><td class="l">{escape(name)}</td>{"".join(f"<td>{value}</td>" for value in values)}</tr>'
            for (name, _), values in zip(self.rows, self.texts("<b>{}</b>"))
        )
        table = f"<table><thead>{self._heads()}</thead><tbody>{rows}</tbody></table>"
        note = f'<p class="soft">{escape(self.note)}</p>' if self.note else ""
        return f'<h3>{escape(self.title)}</h3><div class="wide">{table}</div>{note}'

    def _heads(self) -> str:
        """Return one row of heads, or two where neighbours share all but their last word."""
        parts = [name.rpartition(" ")[::2] for name in self.columns]
        groups = [(above, len(list(members))) for above, members in groupby(above for above, _ in parts)]
        shared = any(above and n > 1 for above, n in groups)
        names = [below for _, below in parts] if shared else self.columns
        corner = f'<th class="l">{escape(self.corner)}</th>'
        head = f"<tr>{corner}{''.join(f'<th>{escape(name)}</th>' for name in names)}</tr>"
        if not shared:
            return head
        over = "".join(f'<th class="over" colspan="{n}">{escape(above)}</th>' for above, n in groups)
        return f"<tr><th></th>{over}</tr>{head}"


def number(value: float | None, digits: int | None = None) -> str:
    """Return a number with as many digits as a reader wants; a count has none."""
    if value is None:
        return "-"
    if isinstance(value, int):
        return str(value)
    if digits is not None:
        return f"{round(value, digits) + 0.0:.{digits}f}"  # + 0.0: no "-0.0".
    return f"{value:.1f}" if abs(value) >= 1 or value == 0 else f"{value:.3g}"


def pivot(
    records: Sequence[Record],
    *,
    name: str,
    title: str,
    row: tuple[str, Pick],
    column: Pick,
    value: Pick,
) -> Sheet:
    """Return the mean of `value` for each (row, column), in the order they come.

    A pick that returns None leaves its cell out. Failed cells are counted in the note.
    """
    found: dict[Any, dict[Any, list[float]]] = {}
    columns: dict[Any, None] = {}
    cells = ((record, label, numbers) for record in records for label, numbers in record.calibrators.items())
    for cell in cells:
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
    return Sheet(name, title, row[0], tuple(map(str, columns)), rows, over(records))


def over(records: Sequence[Record]) -> str:
    """Say how many cells the means are over."""
    failed = sum(record.status == "failed" for record in records)
    done = len(records) - failed
    return f"Over {done} of {len(records)} cells" + (f" ({failed} failed)." if failed else ".")
