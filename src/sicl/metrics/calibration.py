"""Calibration error and proper scores of a confidence against being right."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sicl.errors import OptionError, require_choice, require_number
from sicl.metrics._checked import confidence_and_correct, require_bins
from sicl.metrics.bins import Binning, reliability_bins


def expected_calibration_error(
    confidence: Tensor, correct: Tensor, *, n_bins: int = 15, bins: Binning = "width"
) -> float:
    """Return the mean over samples of their bin's |accuracy - mean confidence| (Naeini et al., 2015).

    Args:
        confidence: N values in [0, 1].
        correct: N booleans, or zeros and ones.
        n_bins: the number of bins.
        bins: "width" or "mass"; see `reliability_bins`.

    Raises:
        InputError: empty input, NaN, values outside [0, 1], or lengths that differ.
    """
    table = reliability_bins(confidence, correct, n_bins=n_bins, bins=bins)
    return float((table.gap * table.count).sum() / table.count.sum())


def maximum_calibration_error(
    confidence: Tensor, correct: Tensor, *, n_bins: int = 15, bins: Binning = "width"
) -> float:
    """Return the largest |accuracy - mean confidence| of any bin that holds a sample."""
    return float(reliability_bins(confidence, correct, n_bins=n_bins, bins=bins).gap.max())


def brier_score(confidence: Tensor, correct: Tensor) -> float:
    """Return the mean of (confidence - correct)^2, the binary Brier score of "my label is right"."""
    values, hits = confidence_and_correct(confidence, correct)
    return float((values - hits).square().mean())


def negative_log_likelihood(confidence: Tensor, correct: Tensor, *, eps: float = 1e-7) -> float:
    """Return the mean binary cross-entropy of "my label is right", in nats.

    Confidence is first clipped to [eps, 1 - eps]: vote shares are often exactly 0 or 1, and a single wrong
    sample at 1 would make the score infinite. The worst a sample can cost is -ln(eps) (16.1 by default).
    """
    require_number(eps=eps)
    if not 0 < eps < 0.5:
        raise OptionError(f"`eps` must lie in (0, 0.5), got {eps!r}.")
    values, hits = confidence_and_correct(confidence, correct)
    likelihood = torch.where(hits > 0, values, 1 - values)
    return float(-likelihood.clamp(eps, 1 - eps).log().mean())


class EceByCorrectness(NamedTuple):
    """The ECE of the right and of the wrong predictions apart; None where there are none."""

    right: float | None
    wrong: float | None


def ece_by_correctness(
    confidence: Tensor, correct: Tensor, *, n_bins: int = 15, bins: Binning = "width"
) -> EceByCorrectness:
    """Return the ECE over the right predictions and over the wrong ones (the paper's appendix).

    A bin's accuracy is 1 among the right and 0 among the wrong, so these are 1 - mean confidence and mean
    confidence: they do not depend on the model's accuracy, nor (but for rounding) on the bins.
    """
    require_bins(n_bins)
    require_choice(("width", "mass"), bins=bins)
    values, hits = confidence_and_correct(confidence, correct)
    parts: list[float | None] = []
    for wanted in (1.0, 0.0):
        chosen = hits == wanted
        part = values[chosen], hits[chosen]
        parts.append(expected_calibration_error(*part, n_bins=n_bins, bins=bins) if len(part[0]) else None)
    return EceByCorrectness(*parts)
