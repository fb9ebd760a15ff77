"""Which predictions to act on, at a risk of one's choice: thresholds, calibrated vectors, prediction sets."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sicl.errors import InputError, OptionError

if TYPE_CHECKING:
    from torch import Tensor

STARTS = (0.1, 0.3, 0.5, 0.7, 1.0)
"""Where `bounded_threshold` begins its sequences of tests, as shares of the labelled samples."""
LEVELS = 20
"""How many thresholds are tried, at equal shares of the labelled samples."""


def require_share(**values: float) -> None:
    """Raise `OptionError` unless every named value lies strictly between 0 and 1."""
    for name, value in values.items():
        if not 0.0 < value < 1.0:
            raise OptionError(f"`{name}` must lie between 0 and 1, both excluded; got {value!r}.")


def expected_threshold(
    confidence: Tensor, risk: float, *, caution: float = 1.0, delta: float | None = None
) -> float:
    """Return the lowest threshold at which the accepted are expected to err at most at `risk`, else inf.

    If each confidence is the chance of being right, 1 - confidence is the chance of an error, and the expected
    error rate of the accepted is its mean q over them. Equal confidences are accepted together. A few accepted may err
    more often than expected: of m, more than a share `risk` > q is wrong with probability at most exp(-m KL(risk | q))
    (Hoeffding, 1963); with `delta` that probability is at most `delta`.

    Args:
        confidence: N.
        risk: the error rate allowed among the accepted.
        caution: how many times each doubt counts; above 1 where calibration is not trusted to the letter.
        delta: how often these accepted may err more often than at `risk`; None: in the mean they may not.
    """
    if not caution >= 1:
        raise OptionError(f"`caution` must be >= 1, got {caution!r}.")
    ordered = confidence.detach().double().cpu().sort(descending=True).values
    accepted = ordered.new_tensor(range(1, len(ordered) + 1))
    doubt = caution * (1 - ordered).cumsum(0) / accepted
    fits = doubt <= risk + 1e-12
    if delta is not None:
        fits &= accepted * _divergence(risk, doubt) >= -math.log(delta)
    last_of_tie = ordered.diff(append=ordered.new_tensor([-1.0])) != 0
    kept = (fits & last_of_tie).nonzero().flatten()
    return float(ordered[kept[-1]]) if len(kept) else math.inf


def _divergence(p: float, q: Tensor) -> Tensor:
    """Return KL(p | q) of coins, in nats."""
    q = q.clamp(1e-12, 1 - 1e-12)
    return p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()


def bounded_threshold(confidence: Tensor, correct: Tensor, *, risk: float, delta: float) -> float:
    """Return a threshold whose accepted err at most at `risk` with probability 1 - `delta`, or inf.

    Thresholds are tested from high to low, each by the exact binomial tail (Clopper-Pearson): the hypothesis
    "the risk at this threshold exceeds `risk`" is rejected, or the sequence ends (fixed-sequence testing, as in
    Learn then Test, Angelopoulos et al., 2021). Several sequences, started at different shares of the samples,
    divide `delta`. Thresholds and starts depend on the confidences alone, so the labels are tested once.

    Args:
        confidence: of the labelled samples, N; drawn like those to come.
        correct: whether each was right, N.
        risk: the promised error rate of the accepted.
        delta: how often the promise may fail, over draws of the labelled samples.
    """
    from scipy.stats import binom

    require_share(risk=risk, delta=delta)
    if confidence.shape != correct.shape or confidence.ndim != 1:
        raise InputError(
            "`labelled` must be (confidence, correct), both of N samples; got shapes "
            f"{tuple(confidence.shape)} and {tuple(correct.shape)}."
        )
    values = confidence.detach().double().cpu()
    wrong = 1 - correct.detach().double().cpu()
    n = len(values)
    # A label-free grid: the confidences at equal shares of the sample, from the most confident down.
    ranks = sorted({max(1, round(n * level / LEVELS)) for level in range(1, LEVELS + 1)}) if n else []
    ordered = values.sort(descending=True).values
    best = math.inf
    for start in STARTS:
        for rank in ranks:
            if rank < n * start - 0.5:
                continue
            threshold = float(ordered[rank - 1])
            accepted = values >= threshold
            tail = binom.cdf(int(wrong[accepted].sum()), int(accepted.sum()), risk)
            if tail > delta / len(STARTS):
                break
            best = min(best, threshold)
    return best


def calibrated_probabilities(logits: Tensor, confidence: Tensor) -> Tensor:
    """Return N x C probabilities whose largest entry is the confidence, in the order the logits have.

    Each sample gets the temperature at which its largest softmax probability equals its confidence: order and
    ties of the logits are kept. A confidence below what a flat vector says (1 / number of classes, or one over
    the number of tied winners) cannot be a largest entry; the vector is then the nearest there is.

    Args:
        logits: N x C.
        confidence: N, in [0, 1].
    """
    below = logits.double() - logits.double().amax(dim=1, keepdim=True)
    target = confidence.double()
    low, high = below.new_full(target.shape, -30.0), below.new_full(target.shape, 30.0)
    for _ in range(60):
        middle = (low + high) / 2
        top = 1 / (below * middle.exp().unsqueeze(1)).exp().sum(dim=1)
        low, high = low.where(top >= target, middle), high.where(top < target, middle)
    return (below * low.exp().unsqueeze(1)).softmax(dim=1).float()


def prediction_sets(probabilities: Tensor, coverage: float) -> Tensor:
    """Return N x C, true for the classes of the smallest set whose probabilities reach `coverage`.

    Classes of equal probability enter together, so a set does not depend on the order of the classes.
    """
    require_share(coverage=coverage)
    values = probabilities.double().sort(dim=1, descending=True).values
    before = values.cumsum(dim=1) - values
    last = (before < coverage - 1e-9).sum(dim=1, keepdim=True) - 1
    return probabilities.double() >= values.gather(1, last)
