"""The paper's tables as it prints them, calibrators below each other, and our numbers beside the printed ones."""

from __future__ import annotations

from collections.abc import Sequence
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
from sicl.bench.tables.summary import Comparison, compare_with_paper, group_records

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
    cells: int

    def gap(self, calibrator: str = "sicl") -> float | None:
        """Return by how many points a calibrator is below the mean of those the paper compares with."""
        others = [self.ece[name] for name in COMPARED if name in self.ece]
        return mean(others) - self.ece[calibrator] if others and calibrator in self.ece else None

    def won(self, calibrator: str = "sicl") -> bool | None:
        """Say whether a calibrator is lowest among those the paper compares, to the digit it prints."""
        others = [self.ece[name] for name in COMPARED if name in self.ece]
        if not others or calibrator not in self.ece:
            return None
        return round(self.ece[calibrator], 1) <= round(min(others), 1)


def settings(records: Sequence[Record], *, key: str = "cumulative_ece") -> list[Setting]:
    """Return the settings of the main table that records have, in the paper's order."""
    found: dict[tuple[str, str, str, str], list[Record]] = {}
    for record in records:
        if record.status == "done":
            found.setdefault((record.stream, record.dataset, record.model, record.method), []).append(record)
    made = []
    for place, members in found.items():
        names = ordered({name for record in members for name in record.calibrators}, CALIBRATOR_NAMES)
        rows = {
            name: [row[name][key] for record in members if name in (row := record.calibrators)]
            for name in names
        }
        ece = {name: 100 * mean(values) for name, values in rows.items()}
        made.append(
            Setting(*place, ece, 100 * mean(record.accuracy or 0.0 for record in members), len(members))
        )
    return sorted(made, key=_rank)


def _rank(setting: Setting) -> tuple[int, ...]:
    keys = setting.stream, setting.dataset, setting.model, setting.method
    return tuple(rank(key, known)[0] for key, known in zip(keys, (STREAMS, DATASETS, MODELS, METHODS)))


def main_table(records: Sequence[Record]) -> list[Sheet]:
    """Return the main table: a sheet for each stream and data set, then where SICL is lowest."""
    every = settings(records)
    groups: dict[tuple[str, str], list[Setting]] = {}
    for setting in every:
        groups.setdefault((setting.stream, setting.dataset), []).append(setting)
    made = [_block(stream, dataset, part, over(records)) for (stream, dataset), part in groups.items()]
    return [*made, *_wins(every)]


def _block(stream: str, dataset: str, part: Sequence[Setting], note: str) -> Sheet:
    names = ordered({name for setting in part for name in setting.ece}, CALIBRATOR_NAMES)
    columns = tuple(f"{model_name(one.model)} {method_name(one.method)}" for one in part)
    rows = []
    for name in names:
        values = [setting.ece.get(name) for setting in part]
        known = [value for value in values if value is not None]
        rows.append((calibrator_name(name), (*values, mean(known) if known else None)))
    accuracy = [setting.accuracy for setting in part]
    rows.append((ACCURACY, (*accuracy, mean(accuracy))))
    title = f"{stream_name(stream)}, {dataset_name(dataset)}: cumulative ECE, %"
    return Sheet(
        f"ece-{stream}-{dataset}",
        title,
        "calibrator",
        (*columns, AVERAGE),
        tuple(rows),
        f"Bold: lowest. {note}",
        best="column",
        aside=(ACCURACY,),
    )


def _wins(every: Sequence[Setting]) -> list[Sheet]:
    """Return in how many settings SICL is lowest and by how much it is below the others, by stream and in all."""
    parts = {stream_name(s): [one for one in every if one.stream == s] for s in {one.stream for one in every}}
    rows = []
    for name, part in (*sorted(parts.items()), ("all", list(every))):
        won = [one.won() for one in part if one.won() is not None]
        gaps = [gap for one in part if (gap := one.gap()) is not None]
        if won and gaps:
            rows.append((name, (sum(map(bool, won)), len(won), mean(gaps))))
    columns = ("SICL lowest", "of settings", "points below the mean of the four")
    note = "Against temperature scaling, MC dropout, TransCal and PseudoCal, as the paper compares."
    return [Sheet("wins", "Where SICL is lowest", "stream", columns, tuple(rows), note)] if rows else []


def corruption_tables(records: Sequence[Record]) -> list[Sheet]:
    """Return the tables by corruption: a sheet for each method, corruptions across and their average."""
    made = []
    for method in ordered({record.method for record in records}, METHODS):
        part = [record for record in records if record.method == method and record.status == "done"]
        if part:
            made.append(_by_corruption(method, part, over(records)))
    return [*made, *_wins(settings(records))]


def _by_corruption(method: str, part: Sequence[Record], note: str) -> Sheet:
    corruptions = ordered({record.corruption or "" for record in part}, CORRUPTIONS)
    names = ordered({name for record in part for name in record.calibrators}, CALIBRATOR_NAMES)
    rows = []
    for name in names:
        values = [_mean_ece([r for r in part if r.corruption == where], name) for where in corruptions]
        known = [value for value in values if value is not None]
        rows.append((calibrator_name(name), (*values, mean(known) if known else None)))
    return Sheet(
        f"ece-{method}",
        f"{method_name(method)}: cumulative ECE, %",
        "calibrator",
        (*(short_domain(name) for name in corruptions), AVERAGE),
        tuple(rows),
        f"Bold: lowest. {note}",
        best="column",
    )


def _mean_ece(records: Sequence[Record], name: str) -> float | None:
    values = [r.calibrators[name]["cumulative_ece"] for r in records if name in r.calibrators]
    return 100 * mean(values) if values else None


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
