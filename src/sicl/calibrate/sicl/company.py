"""Recent images kept beside the batch: what small batches, and those of one class, are normalised with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sicl.calibrate.sicl.variants import SMALL_BATCH

SIZE = 128
"""How many images are kept; half of them join a small batch."""
EVERY = 4
"""Whether batches are mixed is looked at every fourth batch, for the next four."""
BATCHES = 8
"""How many recent batches are compared."""
MIXED = 0.75
"""A batch must use this share of the classes that a random batch of recent predictions would."""
FEWEST = 1.5
"""Below so many effective classes in all, there is nothing to be mixed."""


class Company:
    """Keeps images of the recent stream, and says when a batch needs them beside it.

    Batch statistics mean something only where a batch is large enough and holds the classes of the stream, not one
    after the other. An eighth of each batch takes the place of images drawn at random, so the company reaches back
    some eight batches and holds their classes.

    Args:
        seed: of the drawing.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._generator = torch.Generator()
        self.reset()

    def reset(self) -> None:
        """Forget the recent images."""
        self._generator.manual_seed(self._seed)
        self._images: Tensor | None = None
        self._labels: list[Tensor] = []
        self._batches, self._mixed = 0, True

    def beside(self, images: Tensor, labels: Tensor) -> Tensor | None:
        """Take a batch; return the images to normalise it with, or None if it needs no company."""
        self._labels = [*self._labels, labels][-BATCHES:]
        if self._batches % EVERY == 0 and len(labels) >= SMALL_BATCH:
            self._mixed = self._are_mixed()
        self._batches += 1
        before = self._images
        self._keep(images)
        if before is None or before.shape[1:] != images.shape[1:]:
            return None
        if len(images) < SMALL_BATCH:
            return before[: SIZE // 2]
        return None if self._mixed else before

    def _keep(self, images: Tensor) -> None:
        """Let images take the places of others."""
        images = images.detach()
        if self._images is None or self._images.shape[1:] != images.shape[1:]:
            self._images = images[:SIZE].clone()
            return
        room = SIZE - len(self._images)
        if room > 0:
            self._images = torch.cat([self._images, images[:room]])
            return
        n = -(-len(images) // 8)
        chosen = torch.randperm(len(images), generator=self._generator)[:n].to(images.device)
        places = torch.randperm(SIZE, generator=self._generator)[:n].to(images.device)
        self._images = self._images.index_copy(0, places, images[chosen])

    def _are_mixed(self) -> bool:
        """Whether classes are mixed in batches as in a shuffle of the recent predictions.

        Classes count by exp(entropy), so neither the batch size nor the number of classes matters.
        """
        recent = [labels.cpu() for labels in self._labels]
        pool = torch.cat(recent)
        if len(recent) < 2 or float(effective_classes(pool)) < FEWEST:
            return True
        order = torch.randperm(len(pool), generator=self._generator)
        shuffled = torch.split(pool[order], [len(batch) for batch in recent])
        found, expected = (sum(map(effective_classes, batches)) for batches in (recent, shuffled))
        return bool(found >= MIXED * expected)

    def state_dict(self) -> dict[str, Any]:
        """Return the images and what is known of the recent batches."""
        return {
            "generator": self._generator.get_state(),
            "images": self._images,
            "labels": list(self._labels),
            "batches": self._batches,
            "mixed": self._mixed,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self._generator.set_state(state["generator"])
        self._images, self._labels = state["images"], list(state["labels"])
        self._batches, self._mixed = state["batches"], state["mixed"]


def effective_classes(labels: Tensor) -> Tensor:
    """Return exp(entropy) of the labels' histogram: how many classes are really in use."""
    share = torch.bincount(labels).float() / len(labels)
    effective: Tensor = torch.special.entr(share).sum().exp()
    return effective
