"""Whose statistics normalise the variants: the network's running ones, or those of the batch at hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from sicl.calibrate.sicl.collapse import effective_classes
from sicl.calibrate.sicl.variants import SMALL_BATCH
from sicl.engine.norms import can_group, statistics_of

LOST = 0.4
"""When so large a share of the predictions is lost to the batch's statistics, all variants use these."""
STEPS = 4
"""The share of the variants that use them comes in quarters."""
BATCHES = 8
"""How many recent batches are compared."""
MIXED = 0.75
"""A batch must use this share of the classes that a random batch of recent predictions would."""
FEWEST = 1.5
"""Below so many effective classes in all, there is nothing to be mixed."""


class Replacement:
    """Says when the batch's statistics may stand in for a network's running ones.

    Running statistics that lag behind the stream make a network, and its votes, too sure. The batch's own say
    something only where a batch is large enough, and holds the classes of the stream, not one after the other.

    Args:
        norms: the network's batch norms.
        seed: of the shuffling.
        wanted: whether to replace any.
    """

    def __init__(self, norms: Sequence[_BatchNorm], seed: int, *, wanted: bool) -> None:
        self._norms, self._seed = norms, seed
        self._wanted = wanted and all(map(can_group, norms))
        self._generator = torch.Generator()
        self.reset()

    def reset(self) -> None:
        """Forget the recent predictions."""
        self._generator.manual_seed(self._seed)
        self._recent: list[Tensor] = []

    @property
    def possible(self) -> bool:
        """Whether the network uses running statistics that may be replaced at all."""
        return self._wanted and any(statistics_of(norm) == "running" for norm in self._norms)

    def observe(self, labels: Tensor) -> bool:
        """Take a batch's predicted classes; return whether its statistics may be used."""
        if not self.possible or len(labels) < SMALL_BATCH:
            return False
        return self._is_mixed(labels)

    def _is_mixed(self, labels: Tensor) -> bool:
        """Whether classes are mixed in batches as in a shuffle of the recent predictions.

        Classes count by exp(entropy), so neither the batch size nor the number of classes matters.
        """
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


def fit_of(mirrored: Tensor, own: Tensor, labels: Tensor) -> Tensor:
    """Return how well running statistics fit the stream: 1, or less if predictions are lost to the batch's.

    Asked about a mirrored batch, the batch's own statistics confirm most of the classes that they gave it
    themselves. If they confirm fewer of those that the network predicted, its running statistics do not fit.

    Args:
        mirrored: logits of the mirrored batch by the batch's statistics.
        own: logits of the batch by the batch's statistics.
        labels: the network's predictions.
    """
    confirmed = mirrored.argmax(dim=1)
    most = (confirmed == own.argmax(dim=1)).float().mean().clamp_min(1 / len(labels))
    return ((confirmed == labels).float().mean() / most).clamp_max(1.0)


def share_of(fit: Tensor) -> float:
    """Return the share of the variants that use the batch's statistics."""
    return float(torch.round(STEPS * ((1 - fit) / LOST).clamp(0, 1)) / STEPS)
