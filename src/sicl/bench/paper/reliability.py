"""Figure 2: calibration along a stream, and reliability at its beginning and end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sicl.bench.plan.cell import Cell
from sicl.bench.run.schema import Record
from sicl.bench.run.store import Store
from sicl.bench.tables.sheets import Sheet
from sicl.errors import DataError

FIRST_AND_LAST = 1000
"""Samples in the two reliability diagrams."""


def over_time_and_reliability(records: Sequence[Record], folder: Path) -> list[Sheet]:
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
        columns = zip(
            bins.lower.tolist(), bins.confidence.tolist(), bins.accuracy.tolist(), bins.count.tolist()
        )
        # An empty bin has neither confidence nor accuracy.
        rows = tuple(
            (f"{low:.4f}", (100 * said, 100 * right, int(count)))
            for low, said, right, count in columns
            if count
        )
        heading = f"{title}: reliability of the {part} {size} samples, %"
        names = ("confidence", "accuracy", "samples")
        found.append(Sheet(f"{name}-{part}", heading, "confidence from", names, rows))
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
