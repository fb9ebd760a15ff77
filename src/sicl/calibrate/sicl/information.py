"""How many classes a witness tells apart: whose statistics fit, and whether adaptation has collapsed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sicl.calibrate._memory import Recent
from sicl.calibrate._passes import is_due
from sicl.calibrate.sicl.options import Who

EVERY = 4
"""Witnesses are compared on every fourth batch, and more often at the start."""
WINDOW = 128
"""How many recent samples of these are compared."""
POWER = 2
"""A witness that tells apart twice as many classes has 2 ** 2 times the say."""


class Information:
    """Compares other witnesses with the network, without labels.

    Predictions tell something about the images if they are sharp on each and varied over all of them. Statistics
    that do not fit blur predictions or draw them to a few classes, and a network that has collapsed is sure of one:
    both lower the information I = H(mean p) - mean H(p) between image and predicted class. exp(I) is how many classes
    predictions tell apart; of two witnesses it is taken on the same images, so what the stream holds cancels.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the recent predictions."""
        self._batches = 0
        self._recent: dict[Who, Recent] = {}
        self._ratios: dict[Who, Tensor] = {}

    def observe(self, logits: Tensor, ask: Callable[[], dict[Who, Tensor]]) -> None:
        """Compare on a batch, if it is time.

        Args:
            logits: what the network says of it.
            ask: gives what the others say of it.
        """
        self._batches += 1
        if not is_due(self._batches - 1, EVERY):
            return
        for who, others in ask().items():
            both = torch.stack([logits.float(), others.float()], dim=1).softmax(dim=2)
            self._recent.setdefault(who, Recent(WINDOW)).add(both)
            self._compare(who)

    def _compare(self, who: Who) -> None:
        mine, theirs = information(self._recent[who].values())
        self._ratios[who] = (theirs - mine).exp()

    def ratio(self, who: Who, like: Tensor) -> Tensor:
        """Return how many times the network's classes a witness tells apart (1 if they were never compared)."""
        return self._ratios.get(who, like.new_ones((), dtype=torch.float32))

    def state_dict(self) -> dict[str, Any]:
        """Return the recent predictions."""
        recent = {who: kept.state_dict() for who, kept in self._recent.items()}
        return {"batches": self._batches, "recent": recent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self.reset()
        self._batches = state["batches"]
        for who, kept in state["recent"].items():
            self._recent[who] = Recent(WINDOW)
            self._recent[who].load_state_dict(kept)
            self._compare(who)


def information(probabilities: Tensor) -> Tensor:
    """Return the mutual information of image and class, in nats (N x ... x K gives ...)."""
    each = torch.special.entr(probabilities).sum(dim=-1).mean(dim=0)
    gained: Tensor = torch.special.entr(probabilities.mean(dim=0)).sum(dim=-1) - each
    return gained
