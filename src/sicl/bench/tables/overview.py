"""Records as one Markdown table: a row for each data set, stream and method, the calibrators side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from sicl.bench.run.schema import Record
from sicl.bench.tables.names import markdown_text
from sicl.bench.tables.summary import Group, Mean, group_records, mean_accuracy, mean_metric

MISSING = "-"


def overview(records: Sequence[Record]) -> str:
    """Return the table and, below it, each calibrator's mean over all cells.

    ECE and AUROC are over the stream, in %. "floor" is the ECE that SICL's confidences would have on average if they
    were perfectly calibrated: with so many images in fifteen bins it is not 0. What a cell does not have is left out of
    a mean, which then says over how many cells it is.
    """
    groups = sorted(group_records(records), key=lambda g: (g.dataset, g.model, g.stream, g.method))
    names = list(dict.fromkeys(name for record in records for name in record.calibrators))
    several = len({group.model for group in groups}) > 1
    head = ["data set", *(["model"] if several else []), "stream", "method", "streams", "accuracy"]
    head += [*(f"{markdown_text(name)}: ECE (AUROC)" for name in names), "floor"]
    rows = [_row(group, names, several) for group in groups]
    rows.append(["mean", *[""] * (4 + several), *(_over_rows(groups, name) for name in names), ""])
    lines = [head, ["---"] * len(head), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([table, "", *(_sentence(records, name) for name in names)])


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


def _percent(found: Mean) -> str:
    return MISSING if found.value is None else f"{100 * found.value:.1f}"
