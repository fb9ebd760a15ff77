"""A plan: which sample of which domain comes when, one after the other or in runs by a Dirichlet draw."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sicl.data.images import Positions

OOD_PREFIX = "ood:"
"""How the domain of an out-of-distribution sample begins."""


@dataclass(frozen=True)
class Plan:
    """The order of a stream; a few bytes a sample, made before any image is read.

    Args:
        positions: int64, N: the position in the data set (for an OOD domain: in the OOD set).
        domain_ids: int16, N: which of `domains` the sample belongs to.
        domains: corruption names, "clean", or "ood:NAME".
    """

    positions: Positions
    domain_ids: NDArray[np.int16]
    domains: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.positions)

    def is_ood(self) -> NDArray[np.bool_]:
        """Say which samples are out of distribution."""
        flags = np.array([domain.startswith(OOD_PREFIX) for domain in self.domains])
        chosen: NDArray[np.bool_] = flags[self.domain_ids]
        return chosen

    def reordered(self, order: Positions) -> Plan:
        """Return the plan with its samples in another order."""
        return Plan(self.positions[order], self.domain_ids[order], self.domains)


def join(parts: list[tuple[str, Positions]]) -> Plan:
    """Return the plan that plays domains one after the other."""
    positions = np.concatenate([part for _, part in parts])
    ids = np.repeat(np.arange(len(parts), dtype=np.int16), [len(part) for _, part in parts])
    return Plan(positions, ids, tuple(domain for domain, _ in parts))


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
