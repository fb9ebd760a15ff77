"""Means, spreads and winners of records, never silent about the cells they leave out; as one table too."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any, TypeVar

from sicl.bench.run.schema import Record
from sicl.bench.tables.names import (
    CALIBRATOR_NAMES,
    DATASETS,
    METHODS,
    METRICS,
    STREAMS,
    Metric,
    dataset_name,
    domain_name,
    markdown_text,
    method_name,
    model_name,
    ordered,
    pipe_table,
    rank,
    stream_name,
)
from sicl.bench.tables.printed import CORRUPTIONS, printed_value


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over cells: `value` over `done` of `total` cells, `spread` the deviation between seeds.

    Of the cells it lacks, `failed` have failed; the others were run without the calibrator.
    """

    value: float | None
    done: int
    total: int
    failed: int = 0
    spread: float | None = None

    @property
    def over(self) -> str:
        """Return "over 13 of 15 cells (1 failed, 1 without it)"."""
        without = self.total - self.done - self.failed
        reasons = [f"{self.failed} failed"] * bool(self.failed) + [f"{without} without it"] * bool(without)
        missing = f" ({', '.join(reasons)})" if reasons else ""
        return f"over {self.done} of {self.total} cell{'s' * (self.total != 1)}{missing}"


@dataclass(frozen=True, slots=True)
class Group:
    """The cells of one (data set, model, method, stream), over all corruptions and seeds."""

    dataset: str
    model: str
    method: str
    stream: str
    records: tuple[Record, ...]

    @property
    def done(self) -> tuple[Record, ...]:
        """Return the cells that have metrics."""
        return tuple(record for record in self.records if record.status == "done")

    @property
    def names(self) -> tuple[str, str, str, str]:
        """Return data set, model, method and stream as they are written."""
        names = dataset_name(self.dataset), model_name(self.model), method_name(self.method)
        return (*names, stream_name(self.stream))

    @property
    def title(self) -> str:
        """Return the group's name in words."""
        return " · ".join(self.names)

    def means(self, calibrators: Iterable[str], metric: Metric) -> dict[str, tuple[Mean, bool]]:
        """Return each calibrator's mean, and whether it is the best."""
        means = {name: mean_metric(self.records, name, metric.key) for name in calibrators}
        best = mean_winners(means, metric)
        return {name: (mean, name in best) for name, mean in means.items()}


Item = TypeVar("Item")
Key = TypeVar("Key")


def by(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return things grouped by a key, in the order they come."""
    groups: dict[Key, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def group_records(records: Iterable[Record]) -> list[Group]:
    """Return the groups in the order of data set, model, method and stream."""
    groups = by(records, lambda record: (record.dataset, record.model, record.method, record.stream))
    orders: tuple[dict[str, str], ...] = (DATASETS, {}, METHODS, STREAMS)
    places = sorted(groups, key=lambda place: [rank(*pair) for pair in zip(place, orders)])
    return [Group(*place, tuple(sorted(groups[place], key=_cell_order))) for place in places]


def calibrators_of(records: Iterable[Record]) -> list[str]:
    """Return every calibrator that occurs, SICL last."""
    return ordered({name for record in records for name in record.calibrators}, CALIBRATOR_NAMES)


def domains_of(records: Iterable[Record]) -> list[str]:
    """Return every domain that occurs, the 15 corruptions in the paper's order first."""
    return ordered({name for record in records for name in _domains(record)}, CORRUPTIONS)


def metrics_of(records: Sequence[Record]) -> list[Metric]:
    """Return the metrics that at least one cell has a value for."""
    return [
        metric
        for key, metric in METRICS.items()
        if any(cell.get(key) is not None for record in records for cell in record.calibrators.values())
    ]


def mean_metric(records: Sequence[Record], calibrator: str, key: str) -> Mean:
    """Return the mean of a calibrator's metric over the cells that have it."""
    return _mean(records, lambda record: record.calibrators.get(calibrator, {}).get(key))


def mean_percent(records: Iterable[Record], calibrator: str, key: str = "cumulative_ece") -> float | None:
    """Return the mean of a calibrator's number over the cells that have it, in %."""
    rows = (record.calibrators.get(calibrator, {}) for record in records)
    values = [value for row in rows if (value := row.get(key)) is not None]
    return 100 * mean(values) if values else None


def mean_accuracy(records: Sequence[Record]) -> Mean:
    """Return the mean accuracy over the cells that have one."""
    return _mean(records, lambda record: record.accuracy)


def mean_domain_ece(records: Sequence[Record], calibrator: str, domain: str) -> float | None:
    """Return a calibrator's mean ECE within one domain, over the cells in which the domain occurs."""
    rows = [record.calibrators.get(calibrator, {}).get("by_domain", {}).get(domain) for record in records]
    values = [row["ece"] for row in rows if row]
    return mean(values) if values else None


def winners(values: dict[str, float | None], metric: Metric) -> set[str]:
    """Return the names with the best value, several when they tie to the last printed digit."""
    known = {name: value for name, value in values.items() if value is not None}
    if not known:
        return set()
    best = max(known.values()) if metric.higher else min(known.values())
    return {name for name, value in known.items() if metric.text(value) == metric.text(best)}


def mean_winners(means: dict[str, Mean], metric: Metric) -> set[str]:
    """Return the names with the best mean, among those that are means over the most cells."""
    most = max((mean.done for mean in means.values()), default=0)
    fair = {name: mean.value for name, mean in means.items() if mean.done == most}
    return winners(fair, metric)


def cell_winners(record: Record, metric: Metric) -> set[str]:
    """Return the best calibrators of one cell."""
    return winners({name: cell.get(metric.key) for name, cell in record.calibrators.items()}, metric)


def cell_name(record: Record) -> str:
    """Return what tells a cell from the others of its group: "Fog, severity 5, seed 0"."""
    parts = [domain_name(record.corruption) if record.corruption else stream_name(record.stream)]
    if record.severity is not None:
        parts.append(f"severity {record.severity}")
    return ", ".join((*parts, f"seed {record.seed}"))


def category(record: Record) -> str:
    """Return the category of a cell's corruption: noise, blur, weather, digital or other."""
    from sicl.corruptions import CATEGORIES

    return next((name for name, members in CATEGORIES.items() if record.corruption in members), "other")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Our cumulative ECE (or accuracy) beside the paper's, in percent."""

    group: Group
    calibrator: str
    ours: float
    paper: float
    note: str


def compare_with_paper(groups: Iterable[Group]) -> list[Comparison]:
    """Return a row for every group and calibrator the paper prints a number for.

    A per-corruption table is compared on the corruptions that were run; the main table prints only the
    average over 15, so fewer than 15 are noted.
    """
    rows = []
    for group in groups:
        for calibrator in (*calibrators_of(group.done), "accuracy"):
            if (row := _comparison(group, calibrator)) is not None:
                rows.append(row)
    return rows


def _comparison(group: Group, calibrator: str) -> Comparison | None:
    accuracy = calibrator == "accuracy"
    ours = (
        mean_accuracy(group.records) if accuracy else mean_metric(group.records, calibrator, "cumulative_ece")
    )
    if ours.value is None:
        return None
    corruptions = sorted({record.corruption for record in group.done if record.corruption})
    theirs = [value for name in corruptions if (value := printed_value(group, calibrator, name)) is not None]
    note = ours.over
    if theirs and len(theirs) == len(corruptions):
        paper: float | None = mean(theirs)
        note += f", mean of the {len(theirs)} printed values"
    else:
        paper = printed_value(group, calibrator, None)
        if group.stream == "benign" and len(corruptions) < len(CORRUPTIONS):
            note += f"; ours has {len(corruptions)} of the 15 corruptions"
    return None if paper is None else Comparison(group, calibrator, 100 * ours.value, paper, note)


def _mean(records: Sequence[Record], pick: Callable[[Record], float | None]) -> Mean:
    by_seed: dict[int, list[float]] = {}
    for record in records:
        if (value := pick(record)) is not None:
            by_seed.setdefault(record.seed, []).append(value)
    values = [value for part in by_seed.values() for value in part]
    # A spread between seeds is fair only when every seed has the same number of cells.
    fair = len(by_seed) > 1 and len({len(part) for part in by_seed.values()}) == 1
    spread = stdev([mean(part) for part in by_seed.values()]) if fair else None
    failed = sum(record.status == "failed" for record in records)
    return Mean(mean(values) if values else None, len(values), len(records), failed, spread)


def _domains(record: Record) -> set[str]:
    return {name for cell in record.calibrators.values() for name in cell.get("by_domain", {})}


def _cell_order(record: Record) -> tuple[int, str, int, int]:
    return *rank(record.corruption or "", CORRUPTIONS), record.severity or 0, record.seed


MISSING = "-"


def missing(records: Sequence[Record], planned: int | None) -> str:
    """Say how many of the planned cells have no record; nothing if all have one, or no plan is known."""
    if planned is None or planned <= len(records):
        return ""
    return (
        f"{planned - len(records)} of {planned} planned cells have no record yet; all numbers leave them out."
    )


def overview(records: Sequence[Record], *, by_severity: bool = False, planned: int | None = None) -> str:
    """Return the table and, below it, each calibrator's mean over all cells and whether it did harm.

    `by_severity` gives each severity a row of its own; clean images have none.

    ECE and AUROC are over the stream, in %. "floor" is the ECE that SICL's confidences would have on average if they
    were perfectly calibrated: with so many images in fifteen bins it is not 0. What a cell does not have is left out of
    a mean, which then says over how many cells it is; so do cells of the plan that were not run.
    """
    groups = sorted(group_records(records), key=lambda g: (g.dataset, g.model, g.stream, g.method))
    if by_severity:
        groups = [part for group in groups for part in _severities(group)]
    names = list(dict.fromkeys(name for record in records for name in record.calibrators))
    several = len({group.model for group in groups}) > 1
    head = ["data set", *(["model"] if several else []), "stream", "method", "streams", "accuracy"]
    head += [*(f"{markdown_text(name)}: ECE (AUROC)" for name in names), "floor"]
    rows = [_row(group, names, several) for group in groups]
    rows.append(["mean", *[""] * (4 + several), *(_over_rows(groups, name) for name in names), ""])
    below = [*(_sentence(records, name) for name in names), *(_harm(records, name) for name in names)]
    below += [f"- {note}" for note in [missing(records, planned)] if note]
    return "\n".join([pipe_table(head, rows), "", *filter(None, below)])


def _severities(group: Group) -> list[Group]:
    found = sorted({record.severity or 0 for record in group.records})
    return [
        replace(
            group,
            stream=f"{group.stream}, severity {severity}" if severity else f"{group.stream}, clean",
            records=tuple(record for record in group.records if (record.severity or 0) == severity),
        )
        for severity in found
    ]


def floor(row: Mapping[str, Any]) -> float | None:
    """Return the expected ECE of a calibrated confidence with these bins: a mean of absolute normal errors."""
    bins = row.get("reliability")
    if not bins or not (total := int(sum(bins["count"]))):
        return None
    sizes: list[tuple[int, float]] = list(zip(bins["count"], bins["confidence"]))
    return sum(n / total * math.sqrt(2 * p * (1 - p) / (math.pi * n)) for n, p in sizes if n)


def _row(group: Group, names: Sequence[str], several: bool) -> list[str]:
    means = {name: mean_metric(group.records, name, "ece") for name in names}
    known = [m.value for m in means.values() if m.value is not None]
    cells = []
    for name in names:
        auroc = mean_metric(group.records, name, "auroc")
        fewer = f" over {auroc.done}" if auroc.value is not None and auroc.done < means[name].done else ""
        text = f"{_percent(means[name])} ({_percent(auroc)}{fewer})"
        best = means[name].value is not None and means[name].value == min(known)
        cells.append(f"**{text}**" if best else text)
    floors = [value for r in group.done if (value := floor(r.calibrators.get("sicl", {}))) is not None]
    failed = len(group.records) - len(group.done)
    count = f"{len(group.done)} of {len(group.records)} ({failed} failed)" if failed else str(len(group.done))
    what = [group.dataset, *([group.model] if several else []), group.stream, group.method]
    least = f"{100 * mean(floors):.1f}" if floors else MISSING
    return [*map(markdown_text, what), count, _percent(mean_accuracy(group.records)), *cells, least]


def _over_rows(groups: Sequence[Group], name: str) -> str:
    """Return a calibrator's mean over the rows that have it."""
    parts = []
    for key, digits in (("ece", 2), ("auroc", 1)):
        found = [mean_metric(group.records, name, key).value for group in groups]
        known = [value for value in found if value is not None]
        fewer = f" over {len(known)} of {len(found)} rows" if len(known) < len(found) else ""
        parts.append(f"{100 * mean(known):.{digits}f}{fewer}" if known else MISSING)
    return f"{parts[0]} ({parts[1]})"


def _sentence(records: Sequence[Record], name: str) -> str:
    found = mean_metric(records, name, "ece")
    return f"- {markdown_text(name)}: mean ECE {_percent(found)} {found.over}"


def _harm(records: Sequence[Record], name: str) -> str:
    """Say in how many cells a calibrator is no worse than the softmax: ECE by a point, AUROC by half a point."""
    rows = [r.calibrators for r in records if name != "softmax" and {"softmax", name} <= r.calibrators.keys()]
    off = [row[name]["ece"] - row["softmax"]["ece"] for row in rows]
    ranked = [(row[name]["auroc"], row["softmax"]["auroc"]) for row in rows]
    ranks = [own - before for own, before in ranked if own is not None and before is not None]
    if not rows:
        return ""
    return (
        f"- {markdown_text(name)} beside the softmax: ECE at most 1 point higher in {sum(e <= 0.01 for e in off)} of "
        f"{len(off)} cells, AUROC at most 0.5 lower in {sum(a >= -0.005 for a in ranks)} of {len(ranks)}"
    )


def _percent(found: Mean) -> str:
    return MISSING if found.value is None else f"{100 * found.value:.1f}"
