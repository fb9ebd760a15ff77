"""Orders over samples: independent, and correlated in time by a Dirichlet draw over groups."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sicl.data.images import Positions


def dirichlet_order(
    groups: NDArray[np.integer], *, gamma: float, slots: int, generator: np.random.Generator
) -> Positions:
    """Return an order in which samples of one group come in runs of varying length.

    For every group a Dirichlet(gamma) vector over `slots` slots says what share of its samples falls into each
    slot. The slots play in order; within a slot the groups' segments come in random order. Within a group the
    samples keep the order they are given in.

    Args:
        groups: int, N: the group (corruption type, or class) of each sample.
        gamma: concentration; small values give few long runs, large ones many short runs.
        slots: how many slots.
        generator: the source of randomness.
    """
    segments: list[list[Positions]] = [[] for _ in range(slots)]
    for group in np.unique(groups):
        members = np.flatnonzero(groups == group).astype(np.int64)
        shares = generator.dirichlet(np.full(slots, gamma))
        ends = np.floor(np.cumsum(shares)[:-1] * len(members) + 0.5).astype(np.int64)
        for slot, segment in enumerate(np.split(members, np.clip(ends, 0, len(members)))):
            if len(segment):
                segments[slot].append(segment)
    played = [slot[i] for slot in segments for i in generator.permutation(len(slot))]
    return np.concatenate(played) if played else np.empty(0, np.int64)


def runs(groups: NDArray[np.integer]) -> list[tuple[int, int, int]]:
    """Return the runs of equal values as (start, length, value)."""
    if len(groups) == 0:
        return []
    starts = np.concatenate([[0], np.flatnonzero(np.diff(groups)) + 1])
    lengths = np.diff(np.append(starts, len(groups)))
    return [(int(start), int(length), int(groups[start])) for start, length in zip(starts, lengths)]
