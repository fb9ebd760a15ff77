"""Pair the images of a stream to mix them: a labelled set made of unlabelled images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sicl.adapt import Moment
from sicl.calibrate._passes import predicted_logits
from sicl.errors import InputError, shown

MIX = 0.65
"""Share of the image that gives a mixture its label."""


class Pairs:
    """Gives every image of a batch a partner; a single image meets the last one of the batch before.

    Args:
        seed: of the pairing.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generator = torch.Generator()
        self.reset()

    def reset(self) -> None:
        """Start anew."""
        self._generator.manual_seed(self._seed)
        self._last: tuple[Tensor, Tensor] | None = None

    def of(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return each image's partner and its label: the next in a random cycle, so that none meets itself."""
        before, self._last = self._last, (images[-1:].detach().clone(), labels[-1:].clone())
        if len(images) == 1:
            # One of another size, from before a reset or a loaded state, cannot be mixed with this one.
            return before if before is not None and before[0].shape == images.shape else (images, labels)
        cycle = torch.randperm(len(images), generator=self._generator)
        partner = torch.empty_like(cycle)
        partner[cycle] = cycle.roll(1)
        partner = partner.to(images.device, non_blocking=True)
        return images[partner], labels[partner]

    def state_dict(self) -> dict[str, Any]:
        """Return the pairing's state."""
        return {"generator": self._generator.get_state(), "last": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self._generator.set_state(state["generator"])
        last = state["last"]
        if last is not None and (not isinstance(last, tuple) or len(last) != 2):
            raise InputError(f"`last` of the state must be an image and its label, got {shown(last)}.")
        self._last = last


def mixed_logits(moment: Moment, others: Tensor, mix: float = MIX) -> Tensor:
    """Return the float32 logits of the batch's images mixed with others, by the network as it predicts."""
    return predicted_logits(moment.network, mixture(moment.images, others, mix))


def mixture(images: Tensor, others: Tensor, mix: float = MIX) -> Tensor:
    """Return images mixed with others, which have the smaller share."""
    return torch.lerp(others, images, mix)
