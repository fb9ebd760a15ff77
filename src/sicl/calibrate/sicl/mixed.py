"""Notice streams whose batches hold few of the classes at hand: their batch statistics mean little."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sicl.calibrate.sicl.collapse import effective_classes

BATCHES = 8
"""How many recent batches are compared."""
MIXED = 0.75
"""A batch must use this share of the classes that a random batch of recent predictions would."""
FEWEST = 1.5
"""Below so many effective classes in all, there is nothing to be mixed."""


class Mixed:
    """Says whether the predicted classes of a batch are mixed as those of the recent stream.

    Classes count by exp(entropy). What a random batch would have is measured by shuffling the recent
    predictions, so neither the batch size nor the number of classes matters.

    Args:
        seed: of the shuffling.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generator = torch.Generator()
        self.reset()

    def reset(self) -> None:
        """Forget the recent predictions."""
        self._generator.manual_seed(self._seed)
        self._recent: list[Tensor] = []

    def add(self, labels: Tensor) -> bool:
        """Take a batch's predicted classes; return whether the stream is mixed."""
        self._recent = [*self._recent, labels.cpu()][-BATCHES:]
        pool = torch.cat(self._recent)
        if float(effective_classes(pool)) < FEWEST:
            return False
        order = torch.randperm(len(pool), generator=self._generator)
        shuffled = torch.split(pool[order], [len(batch) for batch in self._recent])
        found, expected = (sum(map(effective_classes, batches)) for batches in (self._recent, shuffled))
        return bool(found >= MIXED * expected)

    def state_dict(self) -> dict[str, Any]:
        """Return the recent predictions."""
        return {"generator": self._generator.get_state(), "recent": self._recent}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self._generator.set_state(state["generator"])
        self._recent = state["recent"]
