"""Notice when adaptation has collapsed, and fall back on the anchor: the network as it was attached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sicl.calibrate._memory import Recent
from sicl.calibrate.sicl.anchor import Anchor

EVERY = 4
"""While all is well the guard looks at every fourth batch only: collapse takes many updates."""
WINDOW = 192
"""How many recent predictions the two networks are compared on."""
HEALTHY, COLLAPSED = 0.8, 0.4
"""The share of the anchor's effective classes at which the guard begins to act, and acts alone."""


class Guard:
    """Compares the adapted network's predictions with the anchor's.

    A collapsed network predicts few classes where the anchor, with the same norm statistics, predicts many. A
    stream that really holds few classes narrows both, so the ratio stays near one.

    Args:
        anchor: the network as it was attached.
    """

    def __init__(self, anchor: Anchor) -> None:
        self.anchor = anchor
        self._adapted, self._anchored = Recent(WINDOW), Recent(WINDOW)
        self.reset()

    def reset(self) -> None:
        """Forget the recent predictions."""
        self._adapted.clear()
        self._anchored.clear()
        self._batches, self._level = 0, 0.0

    def observe(self, labels: Tensor, ask: Callable[[], Tensor]) -> Tensor:
        """Return how far adaptation has collapsed, from 0 to 1.

        Args:
            labels: the predicted classes of a batch.
            ask: gives the anchor's logits of the batch.
        """
        due = self._batches % EVERY == 0 or self._level > 0
        self._batches += 1
        if due and self.anchor.moved:
            logits = ask()
            self._adapted.add(labels)
            self._anchored.add(logits.argmax(dim=1))
            self._level = float(collapse(self._adapted.values(), self._anchored.values(), logits.shape[1]))
        return labels.new_full((), self._level, dtype=torch.float32)

    def state_dict(self) -> dict[str, Any]:
        """Return the recent predictions and the level of collapse."""
        return {
            "adapted": self._adapted.state_dict(),
            "anchor": self._anchored.state_dict(),
            "batches": self._batches,
            "level": self._level,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self._adapted.load_state_dict(state["adapted"])
        self._anchored.load_state_dict(state["anchor"])
        self._batches, self._level = state["batches"], state["level"]


def effective_classes(labels: Tensor, n_classes: int = 0) -> Tensor:
    """Return exp(entropy) of the labels' histogram: how many classes are really in use."""
    share = torch.bincount(labels, minlength=n_classes).float() / len(labels)
    effective: Tensor = torch.special.entr(share).sum().exp()
    return effective


def collapse(adapted: Tensor, anchored: Tensor, n_classes: int) -> Tensor:
    """Return 0 while the adapted labels use nearly as many classes as the anchor's, up to 1 if far fewer."""
    ratio = effective_classes(adapted, n_classes) / effective_classes(anchored, n_classes)
    return ((HEALTHY - ratio) / (HEALTHY - COLLAPSED)).clamp(0.0, 1.0)
