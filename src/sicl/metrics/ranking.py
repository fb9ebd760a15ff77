"""How well a confidence ranks right above wrong: AUROC, risk against coverage, operating points."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from sicl.errors import InputError, require_between
from sicl.metrics._checked import binary_vector, confidence_and_correct, finite_vector


def auroc(scores: Tensor, positive: Tensor) -> float:
    """Return the chance that a positive scores above a negative, a tie counting one half.

    With `positive = correct` this is the AUROC of correctness; with `positive = in-distribution` it is the
    AUROC of out-of-distribution detection. Scores may be any finite numbers.

    Raises:
        InputError: no positive or no negative sample (the AUROC is undefined), NaN, or empty input.
    """
    values = finite_vector("scores", scores)
    mask = binary_vector("positive", positive, len(values))
    n_positive = mask.sum()
    n_negative = len(values) - n_positive
    if n_positive == 0 or n_negative == 0:
        raise InputError(
            f"`auroc` needs positive and negative samples, got {int(n_positive)} positive of {len(values)}."
        )
    _, group, sizes = torch.unique(values, return_inverse=True, return_counts=True)
    mid_rank = sizes.cumsum(0).double() - (sizes.double() - 1) / 2
    wins = (mid_rank[group] * mask).sum() - n_positive * (n_positive + 1) / 2
    return float(wins / (n_positive * n_negative))


class RiskCoverage(NamedTuple):
    """One point a distinct confidence, from the most confident down: accept `confidence >= threshold`."""

    threshold: Tensor
    coverage: Tensor
    risk: Tensor


def risk_coverage_curve(confidence: Tensor, correct: Tensor) -> RiskCoverage:
    """Return the share accepted and the error rate among the accepted, for every useful threshold.

    Equal confidences are accepted together, so every point can be reached in practice.
    """
    threshold, size, wrong = _tie_groups(confidence, correct)
    accepted = size.cumsum(0)
    return RiskCoverage(threshold, accepted / accepted[-1], wrong.cumsum(0) / accepted)


def aurc(confidence: Tensor, correct: Tensor) -> float:
    """Return the area under the risk-coverage curve: the mean risk of the k most confident, k = 1..N.

    Where confidences tie, the value is the exact mean over all orders of the tied samples.
    """
    return float(expected_risk(confidence, correct).mean())


def expected_risk(confidence: Tensor, correct: Tensor) -> Tensor:
    """Return N risks: of the k most confident samples for k = 1..N, in the mean over the order of ties."""
    _, size, wrong = _tie_groups(confidence, correct)
    group = torch.repeat_interleave(torch.arange(len(size)), size.long())
    rank = torch.arange(1, len(group) + 1, dtype=torch.float64)
    before = size.cumsum(0) - size
    wrong_before = wrong.cumsum(0) - wrong
    expected_wrong = wrong_before[group] + (rank - before[group]) * (wrong / size)[group]
    return expected_wrong / rank


class OperatingPoint(NamedTuple):
    """Accept `confidence >= threshold`: `coverage` is the share accepted, `risk` their error rate."""

    threshold: float
    coverage: float
    risk: float


def threshold_for_risk(confidence: Tensor, correct: Tensor, risk: float) -> OperatingPoint | None:
    """Return the threshold that accepts most while at most `risk` of the accepted are wrong.

    The promise holds on the given samples; choose it on held-out labelled data. Returns None when no
    threshold keeps the risk, not even the one that accepts only the most confident samples.
    """
    require_between(0.0, 1.0, risk=risk)
    curve = risk_coverage_curve(confidence, correct)
    kept = (curve.risk <= risk).nonzero().flatten()
    if len(kept) == 0:
        return None
    best = int(kept[-1])
    return OperatingPoint(*(float(column[best]) for column in curve))


def _tie_groups(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values, hits = confidence_and_correct(confidence, correct)
    distinct, group = torch.unique(values, return_inverse=True)
    rows = torch.stack([torch.ones_like(values), 1 - hits])
    totals = torch.zeros(2, len(distinct), dtype=torch.float64).index_add_(1, group, rows)
    size, wrong = totals.flip(1)
    return distinct.flip(0), size, wrong
