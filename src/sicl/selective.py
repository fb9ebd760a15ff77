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
DELTA = 0.1
"""How often the accepted may err more often than promised, unless one says otherwise: in one stream of ten."""
MISCALIBRATION = 0.035
"""A stream's accuracy lies about so far from its mean confidence: one standard deviation, at its widest. Of the size
measured on streams of the validation corruptions (docs/selective-prediction.md)."""


def require_share(**values: float) -> None:
    """Raise `OptionError` unless every named value lies strictly between 0 and 1."""
    for name, value in values.items():
        if not 0.0 < value < 1.0:
            raise OptionError(f"`{name}` must lie between 0 and 1, both excluded; got {value!r}.")


def require_miscalibration(value: float) -> None:
    """Raise `OptionError` unless it is a standard deviation that a share can have."""
    if not 0 <= value <= 0.5:
        raise OptionError(f"`miscalibration` must lie in [0, 0.5], got {value!r}.")


def worth(n: Tensor | float, miscalibration: float) -> Tensor | float:
    """Return how many labelled samples would say as much about an error rate as n confidences do.

    The error rate of n samples, each wrong with chance q, has a variance of q (1 - q) / n. That the confidences of a
    stream are off together adds (2 miscalibration)^2 q (1 - q), which more samples do not take away: the two are the
    variance of 1 / (1 / n + (2 miscalibration)^2) samples, at most some 200 at 0.035.

    Args:
        n: samples.
        miscalibration: the standard deviation of accuracy less mean confidence over streams, where q is one half.
    """
    return 1 / (1 / n + (2 * miscalibration) ** 2)


def expected_threshold(
    confidence: Tensor, risk: float, *, delta: float | None = DELTA, miscalibration: float = MISCALIBRATION
) -> float:
    """Return the lowest threshold at which the accepted err more often than at `risk` in a share `delta`, else inf.

    If each confidence is the chance of being right, 1 - confidence is the chance of an error, and the expected
    error rate of the accepted is its mean q over them. Equal confidences are accepted together. The accepted may err
    more often than expected: of m, more than a share `risk` > q is wrong with probability at most exp(-m KL(risk | q))
    (Hoeffding, 1963). That is at most `delta`, where m counts what the confidences are `worth`.

    Args:
        confidence: N.
        risk: the error rate allowed among the accepted.
        delta: how often these accepted may err more often than at `risk`; None: they may, but not in the mean.
        miscalibration: see `worth`; 0 trusts the confidence to the letter.
    """
    require_miscalibration(miscalibration)
    ordered = confidence.detach().double().cpu().sort(descending=True).values
    accepted = ordered.new_ones(len(ordered)).cumsum(0)
    doubt = (1 - ordered).cumsum(0) / accepted
    fits = doubt <= risk + 1e-12
    if delta is not None:
        fits &= worth(accepted, miscalibration) * _divergence(risk, doubt) >= -math.log(delta)
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
