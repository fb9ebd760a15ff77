"""Wrappers for classifiers that return something else than logits, or take their channels the other way round."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class _Around(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model


class FromProbabilities(_Around):
    """A classifier that returns probabilities, as one that returns logits: their logarithms.

    Args:
        model: returns N x C probabilities.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Return log-probabilities, whose softmax are the probabilities."""
        probabilities: Any = self.model(images)
        return torch.log(probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny))


class TwoClasses(_Around):
    """A classifier with one logit (a sigmoid head), as one of two classes: their logits are (0, z).

    Args:
        model: returns N or N x 1 logits of the second class, before the sigmoid.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of both classes; the softmax of the second is the sigmoid."""
        logit: Any = self.model(images)
        return nn.functional.pad(logit.reshape(len(images), 1), (1, 0))


class ReversedChannels(_Around):
    """A classifier that was trained on BGR images, as one that takes RGB.

    Args:
        model: takes N x 3 x H x W images, blue first.
    """

    def forward(self, images: Tensor) -> Any:
        """Return what the model says of the images with their channels reversed."""
        return self.model(images.flip(1))
