"""Reliability bins: how right a classifier is where it claims a given confidence."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from sicl.errors import require_choice
from sicl.metrics._checked import confidence_and_correct, require_bins

Binning = Literal["width", "mass"]

# Twice the spacing of float32 just below 1 and more: the float32 and the float64 nearest to a bin's edge
# (a vote share of 3/15, say) must fall into the same bin.
_EDGE_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True)
class ReliabilityBins:
    """One row a bin, as float64 vectors (`count`: int64); means are 0 where `count` is 0."""

    lower: Tensor
    upper: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor

    @property
    def gap(self) -> Tensor:
        """Return |accuracy - confidence| of every bin, 0 for an empty one."""
        return (self.accuracy - self.confidence).abs()


def reliability_bins(
    confidence: Tensor, correct: Tensor, *, n_bins: int = 15, bins: Binning = "width"
) -> ReliabilityBins:
    """Sort samples into bins of confidence and return each bin's size, mean confidence and accuracy.

    Args:
        confidence: N values in [0, 1].
        correct: N booleans, or zeros and ones.
        n_bins: the number of bins.
        bins: "width" splits [0, 1] evenly into (lower, upper], 0 belonging to the first bin; "mass" puts
            equally many samples into each bin, never splits equal confidences, and leaves out empty bins.

    Raises:
        InputError: empty input, NaN, values outside [0, 1], or lengths that differ.
    """
    require_bins(n_bins)
    require_choice(("width", "mass"), bins=bins)
    values, hits = confidence_and_correct(confidence, correct)
    if bins == "width":
        return _summarise(values, hits, width_index(values, n_bins), n_bins)
    _, index = torch.unique(mass_index(values, n_bins), return_inverse=True)
    return _mass_edges(values, index, _summarise(values, hits, index, int(index.max()) + 1))


def width_index(confidence: Tensor, n_bins: int) -> Tensor:
    """Return the equal-width bin of every confidence, as int64."""
    return ((confidence - _EDGE_TOLERANCE) * n_bins).floor().long().clamp(0, n_bins - 1)


def mass_index(confidence: Tensor, n_bins: int) -> Tensor:
    """Return the equal-mass bin of every confidence: its mid-rank's share, so that ties stay together."""
    _, group, sizes = torch.unique(confidence, return_inverse=True, return_counts=True)
    middle = sizes.cumsum(0).double() - sizes.double() / 2
    index: Tensor = (middle * n_bins / len(confidence)).floor().long().clamp(max=n_bins - 1)[group]
    return index


def bin_totals(confidence: Tensor, correct: Tensor, index: Tensor, n_bins: int) -> Tensor:
    """Return 3 x n_bins: the count, the summed confidence and the number right of every bin."""
    rows = torch.stack([torch.ones_like(confidence), confidence, correct])
    return torch.zeros(3, n_bins, dtype=torch.float64).index_add_(1, index, rows)


def ece_of_totals(totals: Tensor) -> float:
    """Return the ECE of `bin_totals`: sum over bins of |right - confidence| / N."""
    return float((totals[2] - totals[1]).abs().sum() / totals[0].sum())


def _summarise(confidence: Tensor, correct: Tensor, index: Tensor, n_bins: int) -> ReliabilityBins:
    count, confidence_sum, right = bin_totals(confidence, correct, index, n_bins)
    edges = torch.linspace(0, 1, n_bins + 1, dtype=torch.float64)
    size = count.clamp(min=1)
    return ReliabilityBins(edges[:-1], edges[1:], count.long(), confidence_sum / size, right / size)


def _mass_edges(confidence: Tensor, index: Tensor, table: ReliabilityBins) -> ReliabilityBins:
    size = len(table.count)
    lower = torch.ones(size, dtype=torch.float64).scatter_reduce_(0, index, confidence, "amin")
    upper = torch.zeros(size, dtype=torch.float64).scatter_reduce_(0, index, confidence, "amax")
    return replace(table, lower=lower, upper=upper)
