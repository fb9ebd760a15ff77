"""Notice when adaptation has collapsed, and fall back on the network as it was attached."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sicl.calibrate._memory import Recent
from sicl.calibrate.sicl.anchor import Attached
from sicl.engine.variants import predicted_probability

EVERY = 4
"""While all is well the guard looks at every fourth batch only: collapse takes many updates."""
WINDOW = 192
"""How many recent predictions the two networks are compared on."""
HEALTHY, COLLAPSED = 0.8, 0.4
"""The share of the attached network's effective classes at which the guard begins to act, and acts alone."""


class Guard:
    """Compares the adapted network's predictions with those of the network as it was attached.

    A collapsed network predicts few classes where the attached one, with the same norm statistics, predicts
    many. A stream that really holds few classes narrows both, so the ratio stays near one.

    Args:
        attached: the network as it was attached.
    """

    def __init__(self, attached: Attached) -> None:
        self.attached = attached
        self._adapted, self._attached = Recent(WINDOW), Recent(WINDOW)
        self.reset()

    def reset(self) -> None:
        """Forget the recent predictions."""
        self._adapted.clear()
        self._attached.clear()
        self._batches, self._level = 0, 0.0

    def relax(
        self, confidence: Tensor, labels: Tensor, signals: dict[str, Tensor], ask: Callable[[], Tensor]
    ) -> Tensor:
        """Return the confidence, moved toward the attached network's as far as adaptation has collapsed.

        Args:
            confidence: of the batch.
            labels: the predicted classes.
            signals: to add to.
            ask: gives the attached network's logits of the batch.
        """
        due = self._batches % EVERY == 0 or self._level > 0
        self._batches += 1
        if not due or not self.attached.moved:
            signals["collapse"] = confidence.new_full((), self._level)
            return confidence
        attached = ask()
        n_classes = attached.shape[1]
        self._adapted.add(labels)
        self._attached.add(attached.argmax(dim=1))
        level = collapse(self._adapted.values(), self._attached.values(), n_classes)
        self._level = float(level)
        signals["collapse"], signals["attached"] = level, predicted_probability(attached, labels)
        return (1 - level) * confidence + level * signals["attached"]

    def state_dict(self) -> dict[str, Any]:
        """Return the recent predictions and the level of collapse."""
        return {
            "adapted": self._adapted.state_dict(),
            "attached": self._attached.state_dict(),
            "batches": self._batches,
            "level": self._level,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self._adapted.load_state_dict(state["adapted"])
        self._attached.load_state_dict(state["attached"])
        self._batches, self._level = state["batches"], state["level"]


def effective_classes(labels: Tensor, n_classes: int = 0) -> Tensor:
    """Return exp(entropy) of the labels' histogram: how many classes are really in use."""
    share = torch.bincount(labels, minlength=n_classes).float() / len(labels)
    effective: Tensor = torch.special.entr(share).sum().exp()
    return effective


def collapse(adapted: Tensor, attached: Tensor, n_classes: int) -> Tensor:
    """Return 0 while the adapted labels use nearly as many classes as the attached ones, up to 1 if far fewer."""
    ratio = effective_classes(adapted, n_classes) / effective_classes(attached, n_classes)
    return ((HEALTHY - ratio) / (HEALTHY - COLLAPSED)).clamp(0.0, 1.0)
