"""Spend no more variants than a batch needs: stop when its mean votes have settled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from sicl.calibrate._variants import Votes, joined

Cast = Callable[[int], Votes]
"""Draws the next `n` variants of the whole batch and returns their votes."""

ROUNDS = (4, 4, 12)
"""Variants in each round: every batch gets the first, an undecided one the others (20 at most)."""
SETTLED = 0.115
"""A batch has settled when the root mean square of its votes' standard errors is no larger than this."""


def shared(one: Cast, other: Cast, share: float) -> Cast:
    """Return what draws a share of the variants from `other`, and the rest from `one`."""

    def votes(n: int) -> Votes:
        others = round(share * n)
        parts = ((one, n - others), (other, others))
        return joined([cast(m) for cast, m in parts if m])

    return votes


class Settling:
    """Votes taken round by round, for several kinds of variants, until the batch has settled.

    The batch stops as a whole. Stopping sample by sample was measured and is worse: whoever stops early does
    so because the first votes happened to agree, which makes the stopped ones too sure (1 to 2 points of ECE
    at the same cost; `docs/performance.md`). All kinds go on side by side, so that the device is waited for
    once a round. `begun` are the first round's votes.

    Args:
        kinds: by name, what draws and counts the next variants, a half and its opposite.
        votes: their kind.
        rounds: how many variants to draw at a time, even numbers from 4 on.
        settled: the standard error to reach.
    """

    def __init__(
        self,
        kinds: Mapping[str, Cast],
        votes: Literal["hard", "soft"],
        *,
        rounds: tuple[int, ...] = ROUNDS,
        settled: float = SETTLED,
    ) -> None:
        self._kinds, self._votes, self._settled = kinds, votes, settled
        self._first, *self._rounds = rounds
        self.begun: dict[str, Tensor] = {}

    def start(self, then: Callable[[], None] = lambda: None) -> Settling:
        """Take the first round, without a look at its values; `then` is called before the votes are read."""
        cast = {name: kind(self._first) for name, kind in self._kinds.items()}
        then()
        self.begun = {name: self._pairs(votes) for name, votes in cast.items()}
        self._errors = _errors(self.begun.values())
        return self

    def finish(self) -> dict[str, Tensor]:
        """Return each sample's mean vote, for each kind, over as many variants as the batch needs."""
        pairs, errors = dict(self.begun), self._errors
        for n in self._rounds:
            read = zip(list(pairs), errors.tolist())
            unsettled = [name for name, error in read if not error <= self._settled]
            if not unsettled:
                break
            for name in unsettled:
                pairs[name] = torch.cat([pairs[name], self._pairs(self._kinds[name](n))])
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
