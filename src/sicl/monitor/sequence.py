"""A mean with an interval that holds at every time: look as often as you like, stop when you like."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

STAKES = np.geomspace(0.003, 0.9, 40)
_COST = -np.log1p(-STAKES) - STAKES


class MeanSequence:
    """The running mean of values in [0, 1], with a confidence sequence around it.

    For a stake b in (0, 1), exp(b S - (-log(1 - b) - b) V) is a supermartingale, where S sums the deviations of
    the values from their conditional means and V the squared deviations from what was predicted before each
    (Howard et al., 2021, theorem 4). A mixture over many stakes is one too, and stays below 2 / (1 - level)
    for ever with the wanted probability (Ville); the interval is all S for which it does, on either side. It
    covers the average of the conditional means, so the values may drift and depend on the past.

    Args:
        level: the probability that all intervals, at all times, cover.
    """

    def __init__(self, level: float) -> None:
        self.level = level
        self.n, self.total, self.spread = 0, 0.0, 0.0

    def add(self, values: ArrayLike) -> None:
        """Take further values into the mean."""
        for value in np.asarray(values, np.float64).ravel().tolist():
            self.spread += (value - (0.5 + self.total) / (self.n + 1)) ** 2
            self.total += value
            self.n += 1

    @property
    def mean(self) -> float:
        """Return the mean so far; one half before the first value."""
        return self.total / self.n if self.n else 0.5

    @property
    def interval(self) -> tuple[float, float]:
        """Return the interval of the mean, [0, 1] before the first value."""
        if self.n == 0:
            return 0.0, 1.0
        low, high = 0.0, float(self.n)
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (
                (middle, high) if self._wealth(middle) < math.log(2 / (1 - self.level)) else (low, middle)
            )
        half = high / self.n
        return max(0.0, self.mean - half), min(1.0, self.mean + half)

    def _wealth(self, deviation: float) -> float:
        exponents = STAKES * deviation - _COST * self.spread
        top = float(exponents.max())
        return top + math.log(float(np.exp(exponents - top).mean()))

    def state_dict(self) -> dict[str, Any]:
        """Return the sums."""
        return {"n": self.n, "total": self.total, "spread": self.spread}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self.n, self.total, self.spread = state["n"], state["total"], state["spread"]
