"""The paper's tables as it prints them, calibrators below each other, and our numbers beside the printed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from sicl.bench.run.schema import Record
from sicl.bench.tables.names import (
    CALIBRATOR_NAMES,
    DATASETS,
    METHODS,
    MODELS,
    STREAMS,
    calibrator_name,
    dataset_name,
    method_name,
    model_name,
    ordered,
    rank,
    short_calibrator,
    short_domain,
    stream_name,
)
from sicl.bench.tables.printed import CORRUPTIONS, printed_value
from sicl.bench.tables.sheets import Sheet, over, pivot
from sicl.bench.tables.summary import (
    Comparison,
    by,
    calibrators_of,
    compare_with_paper,
    group_records,
    mean_percent,
)

ACCURACY, AVERAGE = "Accuracy", "Avg."
COMPARED = ("temperature_scaling", "mc_dropout", "transcal", "pseudocal")
"""The calibrators that the paper sets SICL against."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One column of the main table: the mean cumulative ECE (in %) of each calibrator, and the accuracy."""

    stream: str
    dataset: str
    model: str
    method: str
    ece: dict[str, float]
    accuracy: float

    @property
    def others(self) -> list[float]:
        """The numbers of the calibrators that the paper compares with; none where there is no SICL."""
        return [self.ece[name] for name in COMPARED if name in self.ece] if "sicl" in self.ece else []

    def gap(self) -> float | None:
        """Return by how many points SICL is below the mean of those the paper compares with."""
        return mean(self.others) - self.ece["sicl"] if self.others else None

    def won(self) -> bool | None:
        """Say whether SICL is lowest among those the paper compares, to the digit it prints."""
        return round(self.ece["sicl"], 1) <= round(min(self.others), 1) if self.others else None


def settings(records: Sequence[Record]) -> list[Setting]:
    """Return the settings of the main table that records have, in the paper's order."""
    made = []
    finished = [record for record in records if record.status == "done"]
    for place, part in by(finished, lambda r: (r.stream, r.dataset, r.model, r.method)).items():
        values = {name: mean_percent(part, name) for name in calibrators_of(part)}
        ece = {name: value for name, value in values.items() if value is not None}
        made.append(Setting(*place, ece, 100 * mean(record.accuracy or 0.0 for record in part)))
    return sorted(made, key=_rank)


def _rank(setting: Setting) -> tuple[int, ...]:
    keys = setting.stream, setting.dataset, setting.model, setting.method
    return tuple(rank(key, known)[0] for key, known in zip(keys, (STREAMS, DATASETS, MODELS, METHODS)))


def main_table(records: Sequence[Record]) -> list[Sheet]:
    """Return the main table: a sheet for each stream and data set, then where SICL is lowest."""
    every = settings(records)
    groups = by(every, lambda one: (one.stream, one.dataset))
    made = [_block(stream, dataset, part, over(records)) for (stream, dataset), part in groups.items()]
    return [*made, *_wins(every)]


def _block(stream: str, dataset: str, part: Sequence[Setting], note: str) -> Sheet:
    names = ordered({name for setting in part for name in setting.ece}, CALIBRATOR_NAMES)
    columns = [f"{model_name(one.model)} {method_name(one.method)}" for one in part]
    rows = {calibrator_name(name): [one.ece.get(name) for one in part] for name in names}
    rows[ACCURACY] = [one.accuracy for one in part]
    title = f"{stream_name(stream)}, {dataset_name(dataset)}"
    return _averaged(f"ece-{stream}-{dataset}", title, columns, rows, note)


def _averaged(
    name: str, title: str, columns: Sequence[str], rows: Mapping[str, Sequence[float | None]], note: str
) -> Sheet:
    """Return calibrators below each other, with the average of each, the lowest of a column in bold."""
    known = {row: [value for value in values if value is not None] for row, values in rows.items()}
    table = ((row, (*values, mean(known[row]) if known[row] else None)) for row, values in rows.items())
    title, note, heads = f"{title}: cumulative ECE, %", f"Bold: lowest. {note}", (*columns, AVERAGE)
    return Sheet(name, title, "calibrator", heads, tuple(table), note, best="column", aside=(ACCURACY,))


def _wins(every: Sequence[Setting]) -> list[Sheet]:
    """Return in how many settings SICL is lowest and by how much it is below the others, by stream and in all."""
    parts = {stream_name(s): [one for one in every if one.stream == s] for s in {one.stream for one in every}}
    rows = []
    for name, part in (*sorted(parts.items()), ("all", list(every))):
        won = [won for one in part if (won := one.won()) is not None]
        gaps = [gap for one in part if (gap := one.gap()) is not None]
        if won and gaps:
            rows.append((name, (sum(won), len(won), mean(gaps))))
    columns = ("SICL lowest", "of settings", "points below the mean of the four")
    note = "Against temperature scaling, MC dropout, TransCal and PseudoCal, as the paper compares."
    return [Sheet("wins", "Where SICL is lowest", "stream", columns, tuple(rows), note)] if rows else []


def corruption_tables(records: Sequence[Record]) -> list[Sheet]:
    """Return the tables by corruption: a sheet for each method, corruptions across and their average."""
    parts = by((record for record in records if record.status == "done"), lambda record: record.method)
    made = [_by_corruption(name, parts[name], over(records)) for name in ordered(set(parts), METHODS)]
    return [*made, *_wins(settings(records))]


def _by_corruption(method: str, part: Sequence[Record], note: str) -> Sheet:
    corruptions = ordered({record.corruption or "" for record in part}, CORRUPTIONS)
    places = by(part, lambda record: record.corruption)
    rows = {
        calibrator_name(name): [mean_percent(places.get(where, []), name) for where in corruptions]
        for name in calibrators_of(part)
    }
    return _averaged(
        f"ece-{method}", method_name(method), [short_domain(name) for name in corruptions], rows, note
    )


COLUMNS = ("ours", "paper", "difference")


def beside(records: Sequence[Record]) -> list[Sheet]:
    """Return ours, the paper's and the difference of every setting, then the differences as a table."""
    rows = compare_with_paper(group_records(records))
    if not rows:
        return []
    names = {**{row.calibrator: short_calibrator(row.calibrator) for row in rows}, "accuracy": "accuracy"}
    table = tuple(
        (f"{row.group.title} / {names[row.calibrator]}", (row.ours, row.paper, row.ours - row.paper))
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
