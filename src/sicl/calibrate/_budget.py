"""Spend variants where they matter: stop for samples whose confidence has settled, go on for the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from sicl.calibrate._engine import Engine
from sicl.calibrate._variants import Variants

Draw = Callable[[int], Variants]
"""Draws the next `n` variants of the whole batch."""

ROUNDS = (4, 4, 12)
"""Variants in each round: every sample gets the first, the undecided the others (20 at most)."""
SETTLED = 0.15
"""A mean vote has settled when its standard error is no larger than this.

A stricter rule is no better: whoever stops early does so because the first votes happened to agree, so the
more samples are asked again, the more the stopped ones stand out as too sure (`benchmarks/budget.py`)."""


def draw_until_settled(
    engine: Engine,
    draw: Draw,
    labels: Tensor,
    kind: Literal["hard", "soft"],
    *,
    rounds: tuple[int, ...] = ROUNDS,
    settled: float = SETTLED,
) -> Tensor:
    """Return each sample's mean vote over as many variants as it needs.

    Where a sample's votes depend on its batch, the batch goes on as a whole, as long as its root mean square
    standard error is too large.

    Args:
        engine: with the batch begun.
        draw: draws variants, a half and its opposite; called once a round, so that the noise does not depend
            on who is undecided.
        labels: N, the predicted classes.
        kind: of the votes.
        rounds: how many variants to draw at a time, even numbers from 4 on.
        settled: the standard error to reach.
    """
    total = torch.zeros(len(labels), device=labels.device)
    squares, pairs = torch.zeros_like(total), torch.zeros_like(total)
    rows: Tensor | None = None
    for number, n in enumerate(rounds):
        variants = draw(n)
        if number:
            error = standard_error(total, squares, pairs)
            rows = undecided(error, settled, whole=not engine.independent)
            if len(rows) == 0:
                continue
            rows = None if len(rows) == len(labels) else rows
        chosen = slice(None) if rows is None else rows
        part = variants if rows is None else variants.of_rows(rows)
        # Opposite noise makes votes of a pair depend on each other: a pair counts as one observation.
        votes = engine.collect(part, labels[chosen], rows).of(kind).view(2, n // 2, -1).mean(dim=0)
        total[chosen] += votes.sum(dim=0)
        squares[chosen] += votes.square().sum(dim=0)
        pairs[chosen] += n // 2
    return total / pairs


def standard_error(total: Tensor, squares: Tensor, count: Tensor) -> Tensor:
    """Return the standard error of means, from sums, sums of squares, and counts."""
    mean = total / count
    variance = (squares / count - mean.square()).clamp_min(0.0) * count / (count - 1)
    return (variance / count).sqrt()


def undecided(error: Tensor, settled: float, *, whole: bool) -> Tensor:
    """Return the rows to go on with: the worst, rounded up to one of few sizes so that shapes repeat."""
    everyone = torch.arange(len(error), device=error.device)
    if whole:
        return everyone if float(error.square().mean().sqrt()) > settled else everyone[:0]
    n = int((error > settled).sum())
    if n == 0:
        return everyone[:0]
    size = min(len(error), bucket(n))
    return everyone if size == len(error) else error.topk(size).indices.sort().values


def bucket(n: int) -> int:
    """Return the next of 4, 8, 16, 32, 48, 64, 96, 128, 192, ...: `n` rounded up, by half at most beyond 16."""
    power = 4
    while power < n:
        power *= 2
    between = power * 3 // 4
    return between if power > 32 and between >= n else power
