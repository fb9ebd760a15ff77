"""The last samples of a stream, and what they say about it."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sicl.selective import MISCALIBRATION, worth

Column = NDArray[np.float64]


class Estimate(NamedTuple):
    """The estimated accuracy of a window's predictions, and the interval it lies in."""

    accuracy: float
    low: float
    high: float


def estimate_accuracy(
    confidence: Column,
    *,
    miscalibration: float = MISCALIBRATION,
    bias: tuple[float, float] = (0.0, 0.0),
    level: float = 0.95,
) -> Estimate:
    """Return the mean confidence as accuracy, with an interval for the accuracy these samples really have.

    The share that is right differs from the mean confidence by at most Bernstein's bound with probability `level`,
    for as many samples as the confidences are `worth`: chance and miscalibration in one.

    Args:
        confidence: of the window's samples.
        miscalibration: one standard deviation of a stream's accuracy around its mean confidence, at its widest.
        bias: the least and the greatest mean of accuracy less confidence, as labels say it.
        level: how often the interval holds.
    """
    n, mean = float(worth(len(confidence), miscalibration)), float(confidence.mean())
    log = math.log(2 / (1 - level))
    variance = float((confidence * (1 - confidence)).mean())
    half = math.sqrt(2 * variance * log / n) + log / (3 * n)
    return Estimate(mean, max(0.0, mean + bias[0] - half), min(1.0, mean + bias[1] + half))


def effective_classes(labels: Column) -> float:
    """Return exp(entropy) of the labels' histogram: how many classes are really in use."""
    _, counts = np.unique(labels, return_counts=True)
    share = counts / counts.sum()
    return float(np.exp(-(share * np.log(share)).sum()))


class Window:
    """Rows of the last `size` samples, one column a name; a column a batch lacks is NaN there.

    Args:
        size: how many samples are kept.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.columns: dict[str, Column] = {}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def add(self, **columns: Column) -> None:
        """Append a batch; the oldest samples go."""
        before, n = len(self), len(next(iter(columns.values())))
        joined = {}
        for name in self.columns.keys() | columns.keys():
            old = self.columns.get(name, np.full(before, np.nan))
            new = columns.get(name, np.full(n, np.nan))
            joined[name] = np.concatenate([old, new])[-self.size :]
        self.columns = joined

    def mean(self, name: str) -> float | None:
        """Return the mean of what is known of a column, or None."""
        column = self.columns.get(name, np.empty(0))
        known = column[~np.isnan(column)]
        return float(known.mean()) if len(known) else None

    def clear(self) -> None:
        """Forget all samples."""
        self.columns = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the columns."""
        return {name: column.tolist() for name, column in self.columns.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self.columns = {name: np.array(column) for name, column in state.items()}
