"""Spend no more variants than a batch needs: stop when its mean votes have settled."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from sicl.calibrate._variants import Collector, Variants

Draw = Callable[[int], Variants]
"""Draws the next `n` variants of the whole batch."""

ROUNDS = (4, 4, 12)
"""Variants in each round: every batch gets the first, an undecided one the others (20 at most)."""
SETTLED = 0.115
"""A batch has settled when the root mean square of its votes' standard errors is no larger than this."""


def draw_until_settled(
    kinds: Mapping[str, tuple[Collector, Draw]],
    labels: Tensor,
    votes: Literal["hard", "soft"],
    *,
    rounds: tuple[int, ...] = ROUNDS,
    settled: float = SETTLED,
) -> dict[str, Tensor]:
    """Return each sample's mean vote, for each kind of variants, over as many as the batch needs.

    The batch stops as a whole. Stopping sample by sample was measured and is worse: whoever stops early does
    so because the first votes happened to agree, which makes the stopped ones too sure (1 to 2 points of ECE
    at the same cost; `docs/performance.md`). All kinds go on side by side, so that the device is waited for
    once a round.

    Args:
        kinds: by name, an engine with the batch begun, and what draws variants, a half and its opposite.
        labels: N, the predicted classes.
        votes: their kind.
        rounds: how many variants to draw at a time, even numbers from 4 on.
        settled: the standard error to reach.
    """
    pairs: dict[str, list[Tensor]] = {name: [] for name in kinds}
    unsettled = list(kinds)
    for n in rounds:
        for name in unsettled:
            engine, draw = kinds[name]
            # Opposite noise makes votes of a pair depend on each other: a pair counts as one observation.
            cast = engine.collect(draw(n), labels).of(votes)
            pairs[name].append(cast.view(2, n // 2, -1).mean(dim=0))
        errors = torch.stack([standard_error(torch.cat(pairs[name])) for name in unsettled]).tolist()
        unsettled = [name for name, error in zip(unsettled, errors) if not error <= settled]
        if not unsettled:
            break
    return {name: torch.cat(seen).mean(dim=0) for name, seen in pairs.items()}


def standard_error(votes: Tensor) -> Tensor:
    """Return the root mean square, over samples, of the standard errors of their mean votes (V x N)."""
    return (votes.var(dim=0) / len(votes)).mean().sqrt()
