"""A plan: which sample of which domain comes when."""

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
