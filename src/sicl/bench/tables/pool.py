"""Curves and bins of several cells pooled into one, for the charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sicl.bench.run.schema import Record

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Bins:
    """Reliability bins: edges, share of samples, mean confidence and accuracy, 0 where empty."""

    lower: Array
    upper: Array
    count: Array
    confidence: Array
    accuracy: Array

    @property
    def ece(self) -> float:
        """Return the ECE of the pooled samples."""
        return float((np.abs(self.accuracy - self.confidence) * self.count).sum() / max(self.count.sum(), 1))


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a chart."""

    x: Array
    y: Array


def pooled_bins(records: Sequence[Record], calibrator: str) -> Bins | None:
    """Return the bins over the samples of all cells together: exact, as all use the same edges."""
    tables = _parts(records, calibrator, "reliability")
    if not tables:
        return None
    count = np.array([table["count"] for table in tables], dtype=np.float64)
    total = count.sum(0)
    weight = count / np.maximum(total, 1)
    confidence, accuracy = (
        (np.array([table[key] for table in tables]) * weight).sum(0) for key in ("confidence", "accuracy")
    )
    lower, upper = (np.array(tables[0][key]) for key in ("lower", "upper"))
    return Bins(lower, upper, total, confidence, accuracy)


def mean_over_time(records: Sequence[Record], calibrator: str, key: str) -> Curve | None:
    """Return a sliding-window value ("accuracy", "confidence" or "ece") averaged over the cells.

    Cells of one length are averaged point by point; others at equal shares of their stream (x in 0..1).
    """
    parts = _parts(records, calibrator, "over_time")
    if not parts:
        return None
    ends = {tuple(part["end"]) for part in parts}
    if len(ends) == 1:
        return Curve(np.array(parts[0]["end"], float), np.mean([part[key] for part in parts], axis=0))
    grid = np.linspace(0.05, 1.0, 40)
    lines = [np.interp(grid, np.array(part["end"]) / part["end"][-1], part[key]) for part in parts]
    return Curve(grid, np.mean(lines, axis=0))


def mean_risk_coverage(records: Sequence[Record], calibrator: str) -> Curve | None:
    """Return the risk at equal coverage, averaged over the cells."""
    parts = _parts(records, calibrator, "risk_coverage")
    if not parts:
        return None
    grid = np.linspace(0.02, 1.0, 50)
    lines = [np.interp(grid, part["coverage"], part["risk"]) for part in parts]
    return Curve(grid, np.mean(lines, axis=0))


def _parts(records: Sequence[Record], calibrator: str, key: str) -> list[dict[str, Any]]:
    found = (record.calibrators.get(calibrator, {}).get(key) for record in records)
    return [part for part in found if part]
