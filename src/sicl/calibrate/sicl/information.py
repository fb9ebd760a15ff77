"""How much each answer tells, without labels: how many classes it tells apart."""

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
POWER = 8
"""An answer that tells apart a tenth more classes has 1.1 ** 8 times the say."""


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


class Information:
    """Learns from the recent stream how much each answer tells.

    Predictions tell something about the images if they are sharp on each and varied over all of them. A question that
    destroys the images, statistics that do not fit, a network that has collapsed: each blurs predictions or draws them
    to a few classes, and so lowers the information I = H(mean p) - mean H(p) between image and predicted class.
    exp(I) is how many classes the answer tells apart. All answers are about the same images, so what the stream holds
    cancels where they are compared.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the recent answers."""
        self._sums: dict[str, Tensor] = {}
        self._count = 0.0

    def observe(self, answers: Sequence[Answer]) -> Tensor:
        """Take the answers to a batch; return the information of each, in nats."""
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
        varied: Tensor = torch.special.entr(means[:, :-1]).sum(dim=1)
        return varied - means[:, -1]

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


def collapse(answers: Sequence[Answer], information: Tensor) -> Tensor:
    """Return the share of the anchor's classes that the network no longer tells apart (0 to 1).

    Only what both were asked is compared.
    """
    told = {(answer.who, answer.name): value for answer, value in zip(answers, information)}
    lost = [told["anchor", name] - told["network", name] for who, name in told if who == "anchor"]
    if not lost:
        return information.new_zeros(())
    return 1 - (-torch.stack(lost).mean().clamp_min(0.0)).exp()
