"""How much each answer tells, without labels: how little doubt it leaves, at what price in variety."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sicl.calibrate.sicl.options import WITNESSES, Who
from sicl.engine.variants import Votes
from sicl.errors import InputError, shown

MEMORY = 1 - 1 / 256
"""What a sample counts when one more has come: some 256 are remembered, in batches of any size."""
POWER = 50
"""An answer that is clearer by a hundredth has exp(0.5) = 1.6 times the say."""
PRICE = 2 / 3
"""An answer with 1 / e of the variety of a network that names all classes counts as having so much doubt more."""
_CLIP = 1e-3
"""No witness rules a prediction out, or makes it certain, by itself."""

AnswerName = tuple[Who, str]
"""Whose answer, and to which question, with a number where a witness has several to one."""


@dataclass(frozen=True)
class Answers:
    """What the witnesses say about the N samples of a batch, in A answers, one witness after the other.

    Args:
        names: A, the network's first.
        votes: A x N, the probability of the predicted label.
        errors: A x N, their standard errors.
        sums: A x (K + 1), the probabilities of all classes and their entropy, summed over the samples.
    """

    names: tuple[AnswerName, ...]
    votes: Tensor
    errors: Tensor
    sums: Tensor

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def whose(self) -> dict[Who, slice]:
        """The place of each witness's answers."""
        witnesses = [who for who, _ in self.names]
        starts = {who: witnesses.index(who) for who in dict.fromkeys(witnesses)}
        return {who: slice(start, start + witnesses.count(who)) for who, start in starts.items()}

    @classmethod
    def of(cls, names: Sequence[AnswerName], votes: Votes) -> Answers:
        """Return the answers that so many variants are, each by itself."""
        return cls(tuple(names), votes.soft, torch.zeros_like(votes.soft), sums_of(votes))


def sums_of(votes: Votes) -> Tensor:
    """Return the probabilities of all classes and their entropy, summed over the samples, V x (K + 1)."""
    return torch.cat([votes.classes, votes.entropy.sum(dim=1, keepdim=True)], dim=1)


@dataclass(frozen=True)
class Told:
    """What answers have told of the recent stream, each (A) in nats.

    Args:
        variety: H(mean p), how varied the classes are over all images.
        doubt: mean H(p), how unsure the answer is of each.
        n_classes: how many the network knows.
    """

    variety: Tensor
    doubt: Tensor
    n_classes: int

    @property
    def information(self) -> Tensor:
        """Between image and predicted class; its exponential is how many classes are told apart."""
        return self.variety - self.doubt

    @property
    def clarity(self) -> Tensor:
        """How little doubt an answer leaves, at what price in variety: 1 is certain, 0 knows nothing.

        The price is for what the answer lacks of the variety of the network's own predictions, the first answer: the
        higher, the more varied these are.
        """
        # Of a network that names one class only there is nothing to lack, and no logarithm.
        variety = self.variety.clamp_min(1e-3)
        most, own = math.log(max(2, self.n_classes)), variety[:1]
        return 1 - self.doubt / most - PRICE * (own / most).square() * (own / variety).log()


class Information:
    """Learns from the recent stream how much each answer tells.

    A question that destroys the images, or statistics that do not fit, leave doubt. But certainty can be cheap: noise
    draws predictions to a few classes. So the variety that an answer lacks counts against it, and what it has beyond
    that of the network's own predictions for it. Hardly so where the network names few classes: the stream may hold no
    others, and then the answers that stray to them are the more varied ones, and the worse.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the recent answers."""
        self._names: tuple[AnswerName, ...] = ()
        self._sums: Tensor | None = None
        self._count = 0.0

    def observe(self, answers: Answers) -> Told:
        """Take the answers to a batch; return what each has told."""
        sums, n = answers.sums, answers.votes.shape[1]
        # Others were about other images: they cannot be compared with these.
        if self._sums is not None and (self._names != answers.names or self._sums.shape != sums.shape):
            self.reset()
        kept = MEMORY**n
        self._names = answers.names
        self._sums = sums if self._sums is None else torch.add(sums, self._sums, alpha=kept)
        self._count = kept * self._count + n
        means = self._sums / self._count
        return told(means)

    def state_dict(self) -> dict[str, Any]:
        """Return the recent answers."""
        rows = () if self._sums is None else self._sums.unbind()
        return {
            "sums": {f"{who} {name}": row for (who, name), row in zip(self._names, rows)},
            "count": self._count,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        sums = dict(state["sums"])
        rows = [*sums.values()]
        if not all(
            isinstance(row, Tensor) and row.ndim == 1 and len(row) == len(rows[0]) and row.isfinite().all()
            for row in rows
        ):
            raise InputError(
                f"`sums` of the state must be a row for each answer, all of one length, got {shown(state['sums'])}."
            )
        names, stacked = tuple(map(_name, sums)), torch.stack(rows) if rows else None
        self._names, self._sums, self._count = names, stacked, state["count"]


def told(means: Tensor) -> Told:
    """Return what answers have told whose mean probabilities of all classes, and entropy, are such (A x (K + 1))."""
    return Told(torch.special.entr(means[:, :-1]).sum(dim=1), means[:, -1], means.shape[1] - 1)


def _name(key: str) -> AnswerName:
    who, _, name = key.partition(" ")
    for known in WITNESSES:
        if who == known:
            return known, name
    raise InputError(f"`sums` of the state must name a witness of {', '.join(WITNESSES)}, got {shown(key)}.")


def within(scores: Tensor, owners: Tensor) -> Tensor:
    """Return how much each of A answers counts within its witness, W x A: by exp(score).

    Args:
        scores: A.
        owners: W x A, whether the answer is the witness's.
    """
    return _each(scores, owners).softmax(dim=1)


def mean_count(scores: Tensor, owners: Tensor) -> Tensor:
    """Return, for each of W witnesses, the logarithm of the mean of exp(score) of its answers."""
    return _each(scores, owners).logsumexp(dim=1) - owners.sum(dim=1).log()


def _each(scores: Tensor, owners: Tensor) -> Tensor:
    return scores.expand(owners.shape).masked_fill(~owners, -torch.inf)


def pooled(answers: Answers, weights: Tensor, voices: Tensor) -> tuple[Tensor, Tensor]:
    """Return the confidence that answers make, and its standard error.

    Those of one witness repeat what it knows, so they are averaged. Witnesses know different things, so their log-odds
    are averaged: a prediction that one of them finds unlikely is unlikely.

    Args:
        answers: what is said.
        weights: W x A, how much each answer counts within its witness.
        voices: W, how much each witness counts, in all 1.
    """
    said, spread = weights @ answers.votes, (weights.square() @ answers.errors.square()).sqrt()
    if len(said) == 1:
        return said[0], spread[0]
    p = said.clamp(_CLIP, 1 - _CLIP)
    confidence = (voices @ torch.special.logit(p)).sigmoid()
    odds = voices.unsqueeze(1) * spread / (p * (1 - p))
    return confidence, confidence * (1 - confidence) * odds.norm(dim=0)


def collapse(answers: Answers, told: Told) -> Tensor:
    """Return the share of the anchor's classes that the network no longer tells apart (0 to 1).

    Only what both were asked is compared: the anchor is asked what the network was asked last.
    """
    anchor, own = answers.whose["anchor"], answers.whose["network"]
    same = slice(own.stop - (anchor.stop - anchor.start), own.stop)
    lost = (told.information[anchor] - told.information[same]).mean()
    return 1 - (-lost.clamp_min(0.0)).exp()
