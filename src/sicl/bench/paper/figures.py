"""From the records of a preset to the numbers of its table or figure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sicl.bench.cell import Cell
from sicl.bench.paper.sheets import Pick, Sheet, over, pivot
from sicl.bench.report.summary import compare_with_paper, group_records
from sicl.bench.schema import Record
from sicl.bench.store import Store
from sicl.errors import DataError

FIRST_AND_LAST = 1000
"""Samples in the two reliability diagrams of Figure 2."""


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
    return [ece, *_beside(records)]


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
    return [*found, *_beside(records)]


def _beside(records: Sequence[Record]) -> list[Sheet]:
    rows = compare_with_paper(group_records(records))
    if not rows:
        return []
    table = tuple(
        (f"{row.group.title} / {row.calibrator}", (row.ours, row.paper, row.ours - row.paper)) for row in rows
    )
    note = "Cumulative ECE, or accuracy, in %. " + over(records)
    return [Sheet("paper", "Beside the paper", "setting", ("ours", "paper", "difference"), table, note)]


def _figure2(records: Sequence[Record], folder: Path) -> list[Sheet]:
    """Sliding-window ECE over the stream, and reliability of the first and last samples."""
    found = []
    for record in (record for record in records if record.status == "done"):
        name = f"{record.method}-{record.stream}"
        title = f"{record.method}, {record.corruption or record.stream}"
        for calibrator, row in record.calibrators.items():
            line = row["over_time"]
            points = zip(line["end"], line["ece"], line["accuracy"], line["confidence"])
            rows = tuple((str(end), tuple(100 * value for value in values)) for end, *values in points)
            note = f"Windows of {line['window']} samples; {calibrator}."
            columns = ("ECE", "accuracy", "confidence")
            found.append(
                Sheet(f"{name}-over-time", f"{title}: sliding window, %", "end", columns, rows, note)
            )
        found += _reliability(record, folder, name, title)
    return found


def _reliability(record: Record, folder: Path, name: str, title: str) -> list[Sheet]:
    import torch

    from sicl.metrics import reliability_bins

    confidence, correct = _predictions(record, folder)
    size = min(FIRST_AND_LAST, len(correct) // 2)
    found = []
    for part, chosen in (("first", slice(None, size)), ("last", slice(-size, None))):
        bins = reliability_bins(torch.from_numpy(confidence[chosen]), torch.from_numpy(correct[chosen]))
        numbers = np.stack([100 * bins.confidence, 100 * bins.accuracy, bins.count], axis=1)
        rows = tuple((f"{low:.2f}", tuple(line)) for low, line in zip(bins.lower.tolist(), numbers.tolist()))
        found.append(
            Sheet(
                f"{name}-{part}",
                f"{title}: reliability of the {part} {size} samples, %",
                "confidence from",
                ("confidence", "accuracy", "samples"),
                rows,
            )
        )
    return found


def _predictions(record: Record, folder: Path) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Return the first calibrator's confidence, and which predictions are right."""
    cell = Cell({key: value for key, value in record.spec.items() if key != "resolved"})
    path = Store(folder).predictions_path(cell)
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return arrays["confidence_0"], arrays["predicted_0"] == arrays["labels"]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"`{path}` holds no predictions: {error}; run the preset again.") from error


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
        value = _percent(key) if key == "ece" else _plain(key)
        part = pivot(records, name=key, title=title, row=row, column=_calibrator, value=value)
        means = pivot(
            records, name=key, title=title, row=("", lambda *_: "mean"), column=_calibrator, value=value
        )
        made.append(Sheet(key, title, "corruption", part.columns, (*part.rows, *means.rows), part.note))
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
    return Sheet(means.name, means.title, "method", ("ours", "paper", "difference"), rows, means.note)


_MAKERS: dict[str, Callable[[Sequence[Record], Path], list[Sheet]]] = {
    "table1": _tables,
    "table5": _by_corruption,
    "table6": _by_corruption,
    "figure2": _figure2,
    "figure3": _perturbations,
    "figure5": _perturbations,
    "figure6": _by_method("Ablations: cumulative ECE, %"),
    "severity": _severity,
    "layer": _by_method("SICL by layer: cumulative ECE, %"),
    "ood": _ood,
    "sotta": _sotta,
}
