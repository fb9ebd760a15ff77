"""Spend no more variants than a batch needs: stop when its mean votes have settled."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor

from sicl.calibrate.sicl.questions import Question
from sicl.calibrate.sicl.votes import paired, standard_error
from sicl.engine.variants import Votes, joined

ROUNDS = (4, 4, 12)
"""Variants in each round: every batch gets the first, an undecided one the others (20 at most)."""
SETTLED = 0.115
"""A batch has settled when the root mean square of its votes' standard errors is no larger than this."""

More = Callable[[Mapping[Question, int]], Mapping[Question, Votes]]
"""Asks questions so many more times."""


def settle(
    first: Mapping[Question, Votes],
    more: More,
    kind: Literal["hard", "soft"],
    *,
    rounds: tuple[int, ...] = ROUNDS[1:],
    settled: float = SETTLED,
) -> dict[Question, Votes]:
    """Take votes round by round, on several questions, until the batch has settled; return them in pairs.

    The batch stops as a whole. Stopping sample by sample was measured and is worse: whoever stops early does
    so because the first votes happened to agree, which makes the stopped ones too sure (1 to 2 points of ECE
    at the same cost). All questions go on side by side, so that the device is waited for once a round.

    Args:
        first: the votes of the first round, by question.
        more: asks again.
        kind: of the votes.
        rounds: how many variants to draw in the rounds to come, even numbers from 4 on.
        settled: the standard error to reach.
    """
    seen = {name: paired(votes) for name, votes in first.items()}
    for n in rounds:
        errors = _errors(seen.values(), kind).tolist() if seen else []
        unsettled = [name for name, error in zip(seen, errors) if not error <= settled]
        if not unsettled:
            break
        for name, votes in more(dict.fromkeys(unsettled, n)).items():
            seen[name] = joined([seen[name], paired(votes)])
    return seen


def _errors(votes: Iterable[Votes], kind: Literal["hard", "soft"]) -> Tensor:
    return torch.stack([standard_error(seen, kind).square().mean().sqrt() for seen in votes])
