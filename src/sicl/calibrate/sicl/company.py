"""Recent images kept beside the batch: what small batches, and those of one class, are normalised with."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sicl.calibrate.sicl.collapse import effective_classes
from sicl.calibrate.sicl.variants import SMALL_BATCH

SIZE = 128
"""How many images are kept."""
MIXED_SHARE, SORTED_SHARE = 1 / 2, 1 / 8
"""The share of images that take the place of others: of a mixed stream, and of one where classes come in runs."""
STALE = 1 / 4
"""What was kept of the company is old when this share of it is new."""
CHUNK = 64
"""Small batches are compared by so many predictions at a time."""
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
    after the other. At first the company is a fair sample of all that came; later new images take the places of others
    drawn at random, so it reaches back some 256 images, or 1,024 where classes come in runs.

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
        self._chunks, self._mixed = 0, True
        self._seen, self._new = 0, 0
        self.stale = True
        """Whether the company has changed much since it was last given back as stale."""

    def beside(self, images: Tensor, labels: Tensor) -> Tensor | None:
        """Take a batch; return the images to normalise it with, or None if it needs no company or there is none."""
        self._note(labels)
        self._keep(images.detach())
        assert self._images is not None
        small = len(images) < SMALL_BATCH
        if len(self._images) < SMALL_BATCH or not (small or not self._mixed):
            return None
        self.stale = self._new >= STALE * len(self._images)
        if self.stale:
            self._new = 0
        return self._images

    def _note(self, labels: Tensor) -> None:
        """Remember predictions; from time to time, look whether they come mixed."""
        last = self._labels[-1:]
        if last and len(labels) < SMALL_BATCH and len(last[0]) + len(labels) <= CHUNK:
            self._labels[-1] = torch.cat([last[0], labels])
            return
        self._labels = [*self._labels, labels][-BATCHES:]
        if self._chunks % EVERY == 0:
            self._mixed = self._are_mixed()
        self._chunks += 1

    def _keep(self, images: Tensor) -> None:
        """Let images take the places of others."""
        if self._images is None or self._images.shape[1:] != images.shape[1:]:
            self._images, self._seen, self._new = images[:0], 0, 0
        before, room = self._images, SIZE - len(self._images)
        self._seen += len(images)
        self._images = torch.cat([before, images[:room]]) if room else before
        share = max(SIZE / self._seen, MIXED_SHARE if self._mixed else SORTED_SHARE)
        late = images[room:]
        chosen = (torch.rand(len(late), generator=self._generator) < share).nonzero().flatten()[:SIZE]
        places = torch.randperm(SIZE, generator=self._generator)[: len(chosen)]
        if len(chosen):
            chosen, places = chosen.to(images.device), places.to(images.device)
            self._images = self._images.index_copy(0, places, late[chosen])
        self._new += len(images[:room]) + len(chosen)

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
            "chunks": self._chunks,
            "mixed": self._mixed,
            "seen": self._seen,
            "new": self._new,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self._generator.set_state(state["generator"])
        self._images, self._labels = state["images"], list(state["labels"])
        self._chunks, self._mixed = state["chunks"], state["mixed"]
        self._seen, self._new = state["seen"], state["new"]
