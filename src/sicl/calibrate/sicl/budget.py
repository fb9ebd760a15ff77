"""Spend no more than a batch needs, until its mean votes have settled, or than a latency allows."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean, median_low
from typing import Any, Literal

import torch
from torch import Tensor

from sicl.calibrate.sicl.options import Name, Options
from sicl.calibrate.sicl.questions import N_REPAIRS, Question
from sicl.calibrate.sicl.votes import paired, standard_error
from sicl.engine.variants import Votes, joined

ROUNDS = (4, 4, 12)
"""Variants in each round: every batch gets the first, an undecided one the others (20 at most)."""
SETTLED = 0.115
"""A batch has settled when the root mean square of its votes' standard errors is no larger than this."""

COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""How many drawn variants a witness can be bought, where milliseconds are the budget."""
RECENT = 32
"""What was too slow is tried again after as many batches."""
TIMES = 5
"""How many times of one price are remembered."""

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


@dataclass(frozen=True)
class Rung:
    """What every witness is asked for a price: which questions, and how many variants of those that are drawn."""

    names: tuple[Name, ...]
    drawn: int = 0

    @property
    def price(self) -> int:
        """Passes through the network, and one for all that a batch costs anyway."""
        n = self.counts
        return 1 + sum(n[name] for name in self.names)

    @property
    def counts(self) -> dict[Name, int]:
        """How many variants each question has."""
        return counts(self.drawn, self.drawn)


def counts(style: int, content: int) -> dict[Name, int]:
    """Return how many variants each question has, with so many of those that are drawn."""
    return {"mirror": 1, "crop": 1, "repair": N_REPAIRS, "style": style, "content": content}


def ladder(options: Options) -> tuple[Rung, ...]:
    """Return what can be bought, from the softmax alone to all questions; the printed formula needs all of them."""
    asked = tuple(name for name in options.asked if name != "softmax")
    drawn = tuple(name for name in asked if name in ("style", "content"))
    fixed = tuple(name for name in asked if name not in drawn)
    rungs = [Rung(fixed[:n]) for n in range(len(fixed) + 1)]
    full = [Rung(fixed + drawn, n) for n in COUNTS] if drawn else []
    return tuple(full if options.relaxation == "printed" else rungs + full)


class Latency:
    """Chooses what to ask, batch by batch, by how long the batches before took.

    The two cheapest are measured first. A price is known by the median of its last times, for batches of about one
    size; one that was not paid recently is estimated by the straight line through those that were, beginning at the
    nearest. The dearest that fits is chosen, in steps: of at most twice the passes of what was paid recently, or the
    next one. So the choice depends on `clock` alone, and changes only between batches.

    Args:
        budget: milliseconds that a batch may take.
        rungs: what can be bought, the cheapest first.
    """

    def __init__(self, budget: float, rungs: tuple[Rung, ...]) -> None:
        self.budget, self.rungs = budget, rungs
        self.clock: Callable[[], float] = time.perf_counter
        self.rung = rungs[0]
        self._times: dict[tuple[Rung, int], deque[float]] = {}
        self._paid: dict[tuple[Rung, int], int] = {}
        self._used: Counter[Any] = Counter()

    @contextmanager
    def spent_on(self, images: Tensor) -> Iterator[None]:
        """Choose for a batch, and time what is done about it."""
        size = len(images).bit_length()
        self.rung = self._choice(size)
        start = self._now(images.device)
        yield
        milliseconds = 1000 * (self._now(images.device) - start)
        new = (self.rung, images.shape, images.device)
        # What is new is traced and tuned the first time, and on a GPU captured the second.
        if self._used[new] > (images.device.type == "cuda"):
            times = self._times.setdefault((self.rung, size), deque(maxlen=TIMES))
            if not self._is_recent(self.rung, size):
                times.clear()
            times.append(milliseconds)
        self._used[new] += 1
        self._paid[self.rung, size] = self._used.total()

    def _choice(self, size: int) -> Rung:
        known = {rung: median_low(times) for (rung, of), times in self._times.items() if of == size}
        for rung in self.rungs[:2]:
            if rung not in known:
                return rung
        recent = {rung: known[rung] for rung in known if self._is_recent(rung, size)} or known
        slope, dearest = (
            _slope(recent if len(recent) > 1 else known),
            max(recent, key=lambda rung: rung.price),
        )
        next_ = self.rungs[: self.rungs.index(dearest) + 2][-1]

        def fits(rung: Rung) -> bool:
            near = min(recent, key=lambda paid: abs(paid.price - rung.price))
            return recent[near] + slope * (rung.price - near.price) <= self.budget

        near_enough = [rung for rung in self.rungs if rung.price <= max(next_.price, 2 * dearest.price)]
        return next(filter(fits, reversed(near_enough)), self.rungs[0])

    def _is_recent(self, rung: Rung, size: int) -> bool:
        return self._used.total() - self._paid.get((rung, size), 0) <= RECENT

    def _now(self, device: torch.device) -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return self.clock()


def _slope(known: Mapping[Rung, float]) -> float:
    """Return milliseconds a pass, by the straight line nearest to what is known."""
    prices = [rung.price for rung in known]
    if len(prices) < 2:
        return 0.0
    middle, mean = fmean(prices), fmean(known.values())
    spread = sum((price - middle) ** 2 for price in prices)
    return max(0.0, sum((rung.price - middle) * (ms - mean) for rung, ms in known.items()) / spread)
