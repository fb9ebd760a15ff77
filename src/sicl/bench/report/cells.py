"""The table of all cells: one row a record, sortable and with a filter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sicl.bench.report.parts import cell, identity_cells, identity_heads, left, sortable
from sicl.bench.run.schema import Record
from sicl.bench.tables.names import METRICS, MISSING, calibrator_name, domain_name
from sicl.bench.tables.summary import Group, cell_winners
from sicl.bench.tables.svg import tag

Column = tuple[str, Callable[[Record], int | None]]
COLUMNS: tuple[Column, ...] = (("Severity", lambda r: r.severity), ("Seed", lambda r: r.seed))


def cells_table(records: Sequence[Record], groups: Sequence[Group], names: Sequence[str]) -> str:
    """Return the table; severity and seed are columns only where they differ."""
    columns = [item for item in COLUMNS if len({item[1](record) for record in records} - {None}) > 1]
    heads = [*identity_heads(groups), ("Corruption", True), *((title, False) for title, _ in columns)]
    heads += [("Accuracy", False), *((calibrator_name(name), False) for name in names), ("Winner", True)]
    rows = [_row(group, groups, record, names, columns) for group in groups for record in group.records]
    box = (
        '<input class="filter" type="search" placeholder="Filter: tent fog …" '
        'aria-label="Filter cells" data-table="all-cells">'
    )
    lede = tag(
        "p", f"ECE in % of all {len(records)} cells, and the calibrator with the lowest.", class_="lede"
    )
    return lede + box + tag("div", sortable(heads, rows, id="all-cells"), class_="wide scroll")


def _row(
    group: Group, groups: Sequence[Group], record: Record, names: Sequence[str], columns: Sequence[Column]
) -> str:
    metric = METRICS["ece"]
    best = cell_winners(record, metric)
    values = {name: record.calibrators.get(name, {}).get("ece") for name in names}
    corruption = domain_name(record.corruption) if record.corruption else "several"
    winner = ", ".join(calibrator_name(name) for name in names if name in best)
    cells = [
        *identity_cells(group, groups),
        left(corruption),
        *(cell(MISSING if (v := value(record)) is None else str(v), v) for _, value in columns),
        cell(metric.text(record.accuracy), record.accuracy),
        *(
            cell(metric.text(values[name]), values[name], class_="win" if name in best else None)
            for name in names
        ),
        left(winner if record.status == "done" else "failed"),
    ]
    return tag("tr", "".join(cells), class_="failed" if record.status == "failed" else None)
