"""How much each answer tells, without labels: the share of its own variety that it resolves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sicl.calibrate.sicl.options import Who
from sicl.engine.variants import Votes
from sicl.errors import InputError, shown

MEMORY = 1 - 1 / 256
"""What a sample counts when one more has come: some 256 are remembered, in batches of any size."""
POWER = 32
"""An answer that resolves a hundredth more of its variety has exp(0.32) = 1.4 times the say."""


@dataclass(frozen=True)
class Answer:
    """What a witness says to a question about the N samples of a batch.

    Args:
        who: the witness.
        name: of the question, with a number where it has several answers.
        vote: N, the probability of the predicted label.
        error: N, its standard error.
        sums: K + 1, the witness's probabilities of all classes and their entropy, summed over the samples.
    """

    who: Who
    name: str
    vote: Tensor
    error: Tensor
    sums: Tensor

    @classmethod
    def of(cls, who: Who, name: str, votes: Votes, vote: Tensor, error: Tensor | None = None) -> Answer:
        """Return the answer that votes (one or more) give, in the mean."""
        entropy = votes.entropy.sum(dim=1, keepdim=True)
        sums = torch.cat([votes.classes, entropy], dim=1).mean(dim=0)
        return cls(who, name, vote, torch.zeros_like(vote) if error is None else error, sums)


@dataclass(frozen=True)
class Told:
    """What answers have told of the recent stream, each (A) in nats.

    Args:
        variety: H(mean p), how varied the classes are over all images.
        doubt: mean H(p), how unsure the answer is of each.
    """

    variety: Tensor
    doubt: Tensor

    @property
    def information(self) -> Tensor:
        """Between image and predicted class; its exponential is how many classes are told apart."""
        return self.variety - self.doubt

    @property
    def share(self) -> Tensor:
        """Of its variety, how much the answer resolves (0 to 1); an answer without variety resolves nothing."""
        return (self.information / self.variety.clamp_min(1e-6)).clamp(0.0, 1.0)


class Information:
    """Learns from the recent stream how much each answer tells.

    Predictions tell something about the images if they are sharp on each and varied over all of them. A question that
    destroys the images, or statistics that do not fit, blur predictions or draw them to a few classes. The share of the
    variety that is resolved falls with both. It does not ask how many classes a stream holds: where these are two, an
    answer that strays to others is the more varied, and the worse.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the recent answers."""
        self._sums: dict[str, Tensor] = {}
        self._count = 0.0

    def observe(self, answers: Sequence[Answer]) -> Told:
        """Take the answers to a batch; return what each has told."""
        now = {f"{answer.who} {answer.name}": answer.sums for answer in answers}
        # Others were about other images: they cannot be compared with these.
        if {name: sums.shape for name, sums in self._sums.items()} != {k: v.shape for k, v in now.items()}:
            self.reset()
        n = len(answers[0].vote)
        kept = MEMORY**n
        self._sums = {
            name: kept * self._sums[name] + sums if self._sums else sums for name, sums in now.items()
        }
        self._count = kept * self._count + n
        means = torch.stack(list(self._sums.values())) / self._count
        return Told(torch.special.entr(means[:, :-1]).sum(dim=1), means[:, -1])

    def state_dict(self) -> dict[str, Any]:
        """Return the recent answers."""
        return {"sums": dict(self._sums), "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        sums = dict(state["sums"])
        if not all(
            isinstance(row, Tensor) and row.ndim == 1 and row.isfinite().all() for row in sums.values()
        ):
            raise InputError(
                f"`sums` of the state must be a row for each answer, got {shown(state['sums'])}."
            )
        self._sums, self._count = sums, state["count"]


def collapse(answers: Sequence[Answer], told: Told) -> Tensor:
    """Return the share of the anchor's classes that the network no longer tells apart (0 to 1).

    Only what both were asked is compared.
    """
    known = {(answer.who, answer.name): value for answer, value in zip(answers, told.information)}
    lost = [known["anchor", name] - known["network", name] for who, name in known if who == "anchor"]
    if not lost:
        return told.variety.new_zeros(())
    return 1 - (-torch.stack(lost).mean().clamp_min(0.0)).exp()
