"""Calibration error while a stream runs: cumulative and over a sliding window."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sicl.errors import InputError, require_count
from sicl.metrics._checked import confidence_and_correct, numbers, require_bins
from sicl.metrics.bins import bin_totals, ece_of_totals, width_index


class CumulativeEce:
    """The paper's cumulative ECE: after every batch the ECE of all seen so far, averaged over the batches.

    An update costs the batch and `n_bins` additions, however long the stream is. An empty batch (one of
    out-of-distribution samples only, say) is no step.

    Args:
        n_bins: the number of equal-width bins.
    """

    def __init__(self, *, n_bins: int = 15) -> None:
        require_bins(n_bins)
        self.n_bins = n_bins
        self.reset()

    def reset(self) -> None:
        """Forget everything seen."""
        self._totals = torch.zeros(3, self.n_bins, dtype=torch.float64)
        self._sum = 0.0
        self._last = 0.0
        self.n_steps = 0

    def update(self, confidence: Tensor, correct: Tensor) -> None:
        """Take in one batch: N confidences in [0, 1] and whether each label was right."""
        if numbers("confidence", confidence).shape == numbers("correct", correct).shape == (0,):
            return
        values, hits = confidence_and_correct(confidence, correct)
        self._totals += bin_totals(values, hits, width_index(values, self.n_bins), self.n_bins)
        self._last = ece_of_totals(self._totals)
        self._sum += self._last
        self.n_steps += 1

    def compute(self) -> float:
        """Return the average over the steps so far."""
        self._require_steps()
        return self._sum / self.n_steps

    def current(self) -> float:
        """Return the plain ECE over everything seen so far."""
        self._require_steps()
        return self._last

    def _require_steps(self) -> None:
        if self.n_steps == 0:
            raise InputError("`CumulativeEce` has seen no samples yet. Call `update` first.")


class SlidingEce(NamedTuple):
    """`ece[i]` is the ECE of the window that ends after `end[i]` samples."""

    end: Tensor
    ece: Tensor


def sliding_window_ece(
    confidence: Tensor, correct: Tensor, *, window: int = 1000, stride: int = 100, n_bins: int = 15
) -> SlidingEce:
    """Return the equal-width ECE of every window of the stream; the last window ends with the stream.

    A stream shorter than `window` is one window. Small windows are biased upwards: with 64 samples and
    15 bins a perfectly calibrated classifier of mean confidence 0.8 shows an ECE near 0.11.

    Args:
        confidence: N values in [0, 1], in stream order.
        correct: N booleans, or zeros and ones.
        window: samples a window.
        stride: samples from one window's end to the next.
        n_bins: the number of equal-width bins.
    """
    require_bins(n_bins)
    require_count(window=window, stride=stride)
    values, hits = confidence_and_correct(confidence, correct)
    last = len(values)
    ends = sorted({*range(min(window, last), last, stride), last})
    # A bin's signed gap sum (right - confidence) is additive, so windows are differences of running sums.
    gaps = torch.zeros(last + 1, n_bins, dtype=torch.float64)
    gaps[torch.arange(1, last + 1), width_index(values, n_bins)] = hits - values
    running = gaps.cumsum(0)
    stop = torch.tensor(ends)
    start = (stop - window).clamp(min=0)
    ece = (running[stop] - running[start]).abs().sum(1) / (stop - start)
    return SlidingEce(stop, ece)
