"""From the records of a preset to the numbers of its table or figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sicl.bench.paper.reliability import over_time_and_reliability
from sicl.bench.run.schema import Record
from sicl.bench.tables.beside import beside, beside_by_corruption
from sicl.bench.tables.sheets import Pick, Sheet, pivot


def sheets(preset: str, records: Sequence[Record], folder: Path) -> list[Sheet]:
    """Return the numbers of a table or figure.

    Args:
        preset: its name in `PRESETS`.
        records: the cells of its plan.
        folder: where the run keeps its predictions, for the figures that need them.
    """
    return _MAKERS[preset](records, folder)


def _percent(key: str) -> Pick:
    return lambda record, name, row: None if row.get(key) is None else 100 * row[key]


def _plain(key: str) -> Pick:
    return lambda record, name, row: row.get(key)


def _calibrator(record: Record, name: str, row: dict[str, Any]) -> str:
    return name


def _setting(record: Record, name: str, row: dict[str, Any]) -> str:
    return f"{record.stream} / {record.dataset} / {record.model} / {record.method}"


def _corruption(record: Record, name: str, row: dict[str, Any]) -> str | None:
    return record.corruption


def _method(record: Record, name: str, row: dict[str, Any]) -> str:
    return record.method


def _tables(records: Sequence[Record], folder: Path) -> list[Sheet]:
    """The main table: ECE and accuracy by setting, then every number beside the printed one."""
    ece = pivot(
        records,
        name="ece",
        title="Cumulative ECE, %",
        row=("setting", _setting),
        column=_calibrator,
        value=_percent("cumulative_ece"),
    )
    return [ece, *beside(records)]


def _by_corruption(records: Sequence[Record], folder: Path) -> list[Sheet]:
    """A table by corruption: one sheet a method."""
    found = []
    for method in dict.fromkeys(record.method for record in records):
        part = [record for record in records if record.method == method]
        found.append(
            pivot(
                part,
                name=f"ece-{method}",
                title=f"{method}: cumulative ECE by corruption, %",
                row=("corruption", _corruption),
                column=_calibrator,
                value=_percent("cumulative_ece"),
            )
        )
        found += beside_by_corruption(part, method)
    return [*found, *beside(records)]


def _perturbations(records: Sequence[Record], folder: Path) -> list[Sheet]:
    """ECE of each perturbation's votes, and what it does to content and style."""
    row = ("corruption", _corruption)
    titles = {
        "ece": "ECE of the votes, %",
        "content_variance": "ContentVariance",
        "style_variance": "StyleVariance",
    }
    made = []
    for key, title in titles.items():
        value, digits = (_percent(key), 1) if key == "ece" else (_plain(key), None)
        part = pivot(records, name=key, title=title, row=row, column=_calibrator, value=value)
        means = pivot(
            records, name=key, title=title, row=("", lambda *_: "mean"), column=_calibrator, value=value
        )
        rows = (*part.rows, *means.rows)
        made.append(Sheet(key, title, "corruption", part.columns, rows, part.note, digits))
    return made


def _by_method(title: str) -> Callable[[Sequence[Record], Path], list[Sheet]]:
    def make(records: Sequence[Record], folder: Path) -> list[Sheet]:
        return [
            pivot(
                records,
                name="ece",
                title=title,
                row=("calibrator", _calibrator),
                column=_method,
                value=_percent("cumulative_ece"),
            )
        ]

    return make


def _severity(records: Sequence[Record], folder: Path) -> list[Sheet]:
    """ECE within right and within wrong predictions against severity."""
    return [
        pivot(
            records,
            name=key,
            title=f"{title}, %",
            row=("severity", lambda record, *_: record.severity),
            column=_calibrator,
            value=_percent(key),
        )
        for key, title in (
            ("ece_right", "ECE of right predictions"),
            ("ece_wrong", "ECE of wrong predictions"),
            ("cumulative_ece", "Cumulative ECE"),
        )
    ]


def _ood(records: Sequence[Record], folder: Path) -> list[Sheet]:
    """AUROC of telling in- from out-of-distribution samples, by category of corruption."""
    from sicl.corruptions import CATEGORIES

    categories = {name: category for category, names in CATEGORIES.items() for name in names}
    return [
        pivot(
            records,
            name="auroc",
            title="OOD detection, AUROC in %",
            row=("category", lambda record, *_: categories.get(record.corruption or "", "other")),
            column=_calibrator,
            value=_percent("ood_auroc"),
        )
    ]


def _sotta(records: Sequence[Record], folder: Path) -> list[Sheet]:
    """Accuracy of SoTTA with and without SICL, beside the printed 75.4 and 76.4 %."""
    return [
        pivot(
            records,
            name="accuracy",
            title="Accuracy on the noisy stream, %",
            row=("method", _method),
            column=lambda record, *_: record.corruption,
            value=_percent("accuracy"),
        ),
        _sotta_means(records),
    ]


def _sotta_means(records: Sequence[Record]) -> Sheet:
    theirs = {record.dataset for record in records} == {"cifar10-c"}
    printed = {"sotta": 75.4, "sotta+sicl": 76.4} if theirs else {}
    means = pivot(
        records,
        name="paper",
        title="Mean accuracy beside the paper, %",
        row=("method", _method),
        column=lambda *_: "ours",
        value=_percent("accuracy"),
    )
    rows = tuple(
        (
            name,
            (ours, printed.get(name), None if ours is None or name not in printed else ours - printed[name]),
        )
        for name, (ours, *_) in means.rows
    )
    columns = ("ours", "paper", "difference")
    return Sheet(means.name, means.title, "method", columns, rows, means.note, drawn=columns[:2])


_MAKERS: dict[str, Callable[[Sequence[Record], Path], list[Sheet]]] = {
    "table1": _tables,
    "table5": _by_corruption,
    "table6": _by_corruption,
    "figure2": over_time_and_reliability,
    "figure3": _perturbations,
    "figure5": _perturbations,
    "figure6": _by_method("Ablations: cumulative ECE, %"),
    "severity": _severity,
    "layer": _by_method("SICL by layer: cumulative ECE, %"),
    "ood": _ood,
    "sotta": _sotta,
}
