"""Spend no more variants than a batch needs: stop when its mean votes have settled."""

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
"""Variants in each round: every batch gets the first, an undecided one the others (20 at most)."""
SETTLED = 0.13
"""A batch has settled when the root mean square of its votes' standard errors is no larger than this."""


def draw_until_settled(
    engine: Engine,
    draw: Draw,
    labels: Tensor,
    kind: Literal["hard", "soft"],
    *,
    rounds: tuple[int, ...] = ROUNDS,
    settled: float = SETTLED,
) -> Tensor:
    """Return each sample's mean vote over as many variants as the batch needs.

    The batch stops as a whole. Stopping sample by sample was measured and is worse: whoever stops early does
    so because the first votes happened to agree, which makes the stopped ones too sure (1 to 2 points of ECE
    at the same cost; `docs/performance.md`).

    Args:
        engine: with the batch begun.
        draw: draws variants, a half and its opposite.
        labels: N, the predicted classes.
        kind: of the votes.
        rounds: how many variants to draw at a time, even numbers from 4 on.
        settled: the standard error to reach.
    """
    pairs: list[Tensor] = []
    for n in rounds:
        votes = engine.collect(draw(n), labels).of(kind)
        # Opposite noise makes votes of a pair depend on each other: a pair counts as one observation.
        pairs.append(votes.view(2, n // 2, -1).mean(dim=0))
        seen = torch.cat(pairs)
        if float(standard_error(seen)) <= settled:
            break
    return seen.mean(dim=0)


def standard_error(votes: Tensor) -> Tensor:
    """Return the root mean square, over samples, of the standard errors of their mean votes (V x N)."""
    return (votes.var(dim=0) / len(votes)).mean().sqrt()
