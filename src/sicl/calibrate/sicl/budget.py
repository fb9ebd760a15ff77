"""Spend no more variants than a batch needs: stop when its mean votes have settled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from sicl.calibrate.sicl.casting import Cast
from sicl.engine.variants import Votes

ROUNDS = (4, 4, 12)
"""Variants in each round: every batch gets the first, an undecided one the others (20 at most)."""
SETTLED = 0.115
"""A batch has settled when the root mean square of its votes' standard errors is no larger than this."""


class Settling:
    """Votes taken round by round, for several kinds of variants, until the batch has settled.

    The batch stops as a whole. Stopping sample by sample was measured and is worse: whoever stops early does
    so because the first votes happened to agree, which makes the stopped ones too sure (1 to 2 points of ECE
    at the same cost; `docs/performance.md`). All kinds go on side by side, so that the device is waited for
    once a round. `begun` are the first round's votes.

    Args:
        cast: draws and counts the next variants, a half and its opposite.
        first: the votes of the first round, by kind.
        votes: their kind.
        rounds: how many variants to draw at a time in the rounds to come, even numbers from 4 on.
        settled: the standard error to reach.
    """

    def __init__(
        self,
        cast: Cast,
        first: Mapping[str, Votes],
        votes: Literal["hard", "soft"],
        *,
        rounds: tuple[int, ...] = ROUNDS[1:],
        settled: float = SETTLED,
    ) -> None:
        self._cast, self._votes, self._rounds, self._settled = cast, votes, rounds, settled
        self.begun = {name: self._pairs(seen) for name, seen in first.items()}
        self._errors = _errors(self.begun.values())

    def finish(self) -> dict[str, Tensor]:
        """Return each sample's mean vote, for each kind, over as many variants as the batch needs."""
        pairs, errors = dict(self.begun), self._errors
        for n in self._rounds:
            read = zip(list(pairs), errors.tolist())
            unsettled = [name for name, error in read if not error <= self._settled]
            if not unsettled:
                break
            for name, votes in self._cast(dict.fromkeys(unsettled, n)).items():
                pairs[name] = torch.cat([pairs[name], self._pairs(votes)])
            errors = _errors(pairs.values())
        return {name: seen.mean(dim=0) for name, seen in pairs.items()}

    def _pairs(self, votes: Votes) -> Tensor:
        # Opposite noise makes votes of a pair depend on each other: a pair counts as one observation.
        cast = votes.of(self._votes)
        return cast.view(2, len(cast) // 2, -1).mean(dim=0)


def _errors(pairs: Iterable[Tensor]) -> Tensor:
    return torch.stack([standard_error(seen) for seen in pairs])


def standard_error(votes: Tensor) -> Tensor:
    """Return the root mean square, over samples, of the standard errors of their mean votes (V x N)."""
    return (votes.var(dim=0) / len(votes)).mean().sqrt()
