"""Our numbers beside the printed ones."""

from __future__ import annotations

from collections.abc import Sequence

from sicl.bench.run.schema import Record
from sicl.bench.tables.names import dataset_name, short_calibrator, stream_name
from sicl.bench.tables.printed import printed_value
from sicl.bench.tables.sheets import Sheet, over, pivot
from sicl.bench.tables.summary import Comparison, compare_with_paper, group_records

COLUMNS = ("ours", "paper", "difference")


def beside(records: Sequence[Record]) -> list[Sheet]:
    """Return ours, the paper's and the difference of every setting, then the differences as a table."""
    rows = compare_with_paper(group_records(records))
    if not rows:
        return []
    table = tuple(
        (f"{row.group.title} / {_named(row.calibrator)}", (row.ours, row.paper, row.ours - row.paper))
        for row in rows
    )
    note = "Cumulative ECE, or accuracy, in %. " + over(records)
    full = Sheet("paper", "Beside the paper", "setting", COLUMNS, table, note)
    return [full, _differences(rows, note)]


Points = dict[str, list[tuple[float, float]]]


def against(records: Sequence[Record]) -> dict[str, Points]:
    """Return, by stream and data set, (printed, ours) of every setting's cumulative ECE by calibrator."""
    found: dict[str, Points] = {}
    for row in compare_with_paper(group_records(records)):
        if row.calibrator != "accuracy":
            title = f"{stream_name(row.group.stream)}, {dataset_name(row.group.dataset)}"
            found.setdefault(title, {}).setdefault(row.calibrator, []).append((row.paper, row.ours))
    return found


def _named(calibrator: str) -> str:
    return short_calibrator(calibrator) if calibrator != "accuracy" else calibrator


def _differences(rows: Sequence[Comparison], note: str) -> Sheet:
    columns = tuple(dict.fromkeys(row.calibrator for row in rows))
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        found.setdefault(row.group.title, {})[row.calibrator] = row.ours - row.paper
    table = tuple((title, tuple(values.get(name) for name in columns)) for title, values in found.items())
    return Sheet("difference", "Ours minus the paper's, points", "setting", columns, table, note)


def beside_by_corruption(records: Sequence[Record], method: str) -> list[Sheet]:
    """Return, for one method, our ECE minus the printed one of each corruption; nothing where none is printed."""

    def difference(record: Record, name: str, row: dict[str, float]) -> float | None:
        printed = printed_value(record, name, record.corruption) if record.corruption else None
        ours = row.get("cumulative_ece")
        return None if printed is None or ours is None else 100 * ours - printed

    sheet = pivot(
        records,
        name=f"difference-{method}",
        title=f"{method}: ours minus the paper's by corruption, points",
        row=("corruption", lambda record, *_: record.corruption),
        column=lambda record, name, row: name if difference(record, name, row) is not None else None,
        value=difference,
    )
    return [sheet] if sheet.rows else []
