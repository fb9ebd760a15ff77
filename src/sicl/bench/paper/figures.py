"""From the records of a preset to the numbers of its table or figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sicl.bench.paper.presets import MEMBERS
from sicl.bench.paper.reliability import over_time_and_reliability
from sicl.bench.run.schema import Record
from sicl.bench.tables.layout import beside, beside_by_corruption, corruption_tables, main_table
from sicl.bench.tables.sheets import Pick, Sheet, pivot
from sicl.bench.tables.summary import by, category

COMPONENTS = ("mean only", "std only", "mixstyle", "style votes")
RELAXATIONS = ("style votes", "sicl_paper", "style votes, guard")
DEFAULTS = ("sicl", *(f"sicl, no {name}" for name in MEMBERS), "sicl, no guard")
NUMBERED = "style votes, N = "


def sheets(preset: str, records: Sequence[Record], folder: Path) -> list[Sheet]:
    """Return the numbers of a table or figure.

    Args:
        preset: its name in `PRESETS`.
        records: the cells of its plan.
        folder: where the run keeps its predictions, for the figures that need them.
    """
    return _MAKERS[preset](records, folder)


def _percent(key: str, whole: float = 100) -> Pick:
    return lambda record, name, row: None if row.get(key) is None else whole * row[key]


def _calibrator(record: Record, name: str, row: dict[str, Any]) -> str:
    return name


def _of(field: str) -> tuple[str, Pick]:
    """Return rows by a field of the record."""
    return field, lambda record, *_: getattr(record, field)


def _tables(records: Sequence[Record], folder: Path) -> list[Sheet]:
    """The main table as the paper prints it, then every number beside the printed one."""
    return [*main_table(records), *beside(records)]


def _by_corruption(records: Sequence[Record], folder: Path) -> list[Sheet]:
    """A table by corruption as the paper prints it, then every number beside the printed one."""
    parts = by(records, lambda record: record.method)
    each = [sheet for method, part in parts.items() for sheet in beside_by_corruption(part, method)]
    return [*corruption_tables(records), *beside(records), *each]


def _perturbations(records: Sequence[Record], folder: Path) -> list[Sheet]:
    """ECE of each perturbation's votes, and what it does to content and style."""
    titles = {
        "ece": "ECE of the votes, %",
        "content_variance": "ContentVariance",
        "style_variance": "StyleVariance",
    }
    made = []
    for key, title in titles.items():
        value, digits = (_percent(key), 1) if key == "ece" else (_percent(key, 1), None)
        part = pivot(records, name=key, title=title, row=_of("corruption"), column=_calibrator, value=value)
        means = pivot(
            records, name=key, title=title, row=("", lambda *_: "mean"), column=_calibrator, value=value
        )
        made.append(replace(part, rows=(*part.rows, *means.rows), digits=digits))
    return made


def _some(records: Sequence[Record], name: str, title: str, labels: Sequence[str]) -> Sheet:
    """Return the cumulative ECE of some calibrators, by method."""
    sheet = pivot(
        records,
        name=name,
        title=f"{title}: cumulative ECE, %",
        row=_of("method"),
        column=lambda record, label, row: label if label in labels else None,
        value=_percent("cumulative_ece"),
    )
    return replace(sheet.only(labels), best="row")


def _ablations(records: Sequence[Record], folder: Path) -> list[Sheet]:
    """Components, relaxation and number of variants of the printed votes, and the parts of our default."""

    def variants(record: Record, name: str, row: dict[str, Any]) -> int | None:
        if name == "style votes":
            return 20
        return int(name.removeprefix(NUMBERED)) if name.startswith(NUMBERED) else None

    numbered = pivot(
        records,
        name="variants",
        title="(c) Number of variants N: cumulative ECE, %",
        row=("N", variants),
        column=_of("method")[1],
        value=_percent("cumulative_ece"),
    )
    counted = replace(numbered, rows=tuple(sorted(numbered.rows, key=lambda row: int(row[0]))))
    return [
        _some(records, "components", "(a) What is perturbed", COMPONENTS),
        _some(records, "relaxation", "(b) Relaxation of the style votes", RELAXATIONS),
        counted,
        _some(records, "default", "Parts of our default", DEFAULTS),
    ]


def _severity(records: Sequence[Record], folder: Path) -> list[Sheet]:
    """ECE within right and within wrong predictions against severity."""
    return [
        pivot(
            records,
            name=key,
            title=f"{title}, %",
            row=_of("severity"),
            column=_calibrator,
            value=_percent(key),
        )
        for key, title in (
            ("ece_right", "ECE of right predictions"),
            ("ece_wrong", "ECE of wrong predictions"),
            ("cumulative_ece", "Cumulative ECE"),
        )
    ]


def _layers(records: Sequence[Record], folder: Path) -> list[Sheet]:
    """Cumulative ECE of the printed style votes and of our default after each stage, by method."""
    stages = [f"layer{i}" for i in range(1, 5)]
    return [
        _some(records, "printed", "Style votes after each stage", [f"style votes, {s}" for s in stages]),
        _some(records, "default", "Our default after each stage", [f"sicl, {s}" for s in stages]),
    ]


def _ood(records: Sequence[Record], folder: Path) -> list[Sheet]:
    """AUROC of telling in- from out-of-distribution samples, and the ECE of the known, by category."""
    row = ("category", lambda record, *_: category(record))
    parts = (("auroc", "ood_auroc", "OOD detection, AUROC in %"), ("ece", "ece", "ECE of known samples, %"))
    return [
        pivot(records, name=name, title=title, row=row, column=_calibrator, value=_percent(key))
        for name, key, title in parts
    ]


def _sotta(records: Sequence[Record], folder: Path) -> list[Sheet]:
    """Accuracy of SoTTA with and without SICL by corruption, then beside the printed 75.4 and 76.4 %."""
    made = [
        pivot(
            part,
            name="accuracy-" + stream.replace(", ", "-").replace(" ", "-"),
            title=f"Accuracy on the {stream} stream, %",
            row=_of("corruption"),
            column=_of("method")[1],
            value=_percent("accuracy"),
        )
        for stream, part in by(records, lambda record: record.stream).items()
    ]
    return [*made, _sotta_means(records)]


def _sotta_means(records: Sequence[Record]) -> Sheet:
    theirs = {record.dataset for record in records} == {"cifar10-c"}
    printed = {"sotta": 75.4, "sotta+sicl": 76.4} if theirs else {}
    means = pivot(
        records,
        name="paper",
        title="Mean accuracy, %",
        row=_of("method"),
        column=_of("stream")[1],
        value=_percent("accuracy"),
    )
    rows = tuple((name, (*values, printed.get(name))) for name, values in means.rows)
    return replace(means, columns=(*means.columns, "paper"), rows=rows)


def _stream(records: Sequence[Record], folder: Path) -> list[Sheet]:
    """How often each corruption comes, and for how long, in the first dynamic stream."""
    segments = next((record.segments for record in records if record.segments), [])
    runs: dict[str, list[int]] = {}
    begin = 0
    for name, end in segments:
        runs.setdefault(name, []).append(end - begin)
        begin = end
    rows = tuple(
        (name, (len(sizes), min(sizes), max(sizes), sum(sizes))) for name, sizes in sorted(runs.items())
    )
    columns = ("runs", "shortest", "longest", "samples")
    return [Sheet("runs", "Runs of each corruption", "corruption", columns, rows)]


_MAKERS: dict[str, Callable[[Sequence[Record], Path], list[Sheet]]] = {
    "table2": _tables,
    "table3": _by_corruption,
    "table4": _by_corruption,
    "figure2": over_time_and_reliability,
    "figure3": _perturbations,
    "figure5": _perturbations,
    "figure6": _ablations,
    "figure7ab": _severity,
    "figure7c": _layers,
    "figure8a": _ood,
    "figure8b": _sotta,
    "figure9": _stream,
}
