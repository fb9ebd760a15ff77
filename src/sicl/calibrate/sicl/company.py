"""Recent images kept beside the batch: what small batches, and those of one class, are normalised with."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sicl.calibrate.sicl.variants import SMALL_BATCH

SIZE = 128
"""How many images are kept; of a mixed stream half of them, the latest, are the company."""
SHARE = 1 / 8
"""The share of a stream's images that take the place of others where the company shall reach far back."""
STALE = 1 / 4
"""What was kept of the company is old when this share of it is new."""
CHUNK = 64
"""Small batches are compared by so many images at a time."""
EVERY = 4
"""Whether batches are mixed is looked at after every fourth batch, for the next four."""
BATCHES = 8
"""How many recent batches are compared."""
MIXED = 2.0
"""Batches of a mixed stream differ as by chance (1); so much of that is believed to be chance."""
_SIDE = 4


class Company:
    """Keeps images of the recent stream, and says when a batch needs them beside it.

    Batch statistics mean something only where a batch is large enough and holds the classes of the stream, not one
    after the other. Small batches of a mixed stream are normalised as the latest 64 images are, whatever came before.
    Where classes come in runs the company must hold many: it is a fair sample of all that came, later of some 1,024.

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
        self._layouts: list[Tensor] = []
        self._chunks, self._mixed = 0, True
        self._seen, self._new = 0, 0
        self.stale = True
        """Whether the company has changed much since it was last given back as stale."""

    def beside(self, images: Tensor) -> Tensor | None:
        """Take a batch; return the images to normalise it with, or None if it needs no company or there is none."""
        if self._images is not None and self._images.shape[1:] != images.shape[1:]:
            self.reset()
        self._note(layouts(images.detach()))
        latest = len(images) < SMALL_BATCH and self._mixed
        (self._append if latest else self._sample)(images.detach())
        assert self._images is not None
        company = self._images[-SIZE // 2 :] if latest else self._images
        if len(company) < SMALL_BATCH or (self._mixed and not latest):
            return None
        self.stale = self._new >= STALE * len(company)
        if self.stale:
            self._new = 0
        return company

    def _note(self, seen: Tensor) -> None:
        """Remember what the images look like; from time to time, look whether they come mixed."""
        last = self._layouts[-1:]
        if last and len(seen) < SMALL_BATCH and len(last[0]) + len(seen) <= CHUNK:
            self._layouts[-1] = torch.cat([last[0], seen])
            return
        self._layouts = [*self._layouts, seen][-BATCHES:]
        self._chunks += 1
        if self._chunks % EVERY == 0:
            self._mixed = bool(variation(self._layouts) < MIXED)

    def _append(self, images: Tensor) -> None:
        """Let images take the places of the oldest."""
        self._images = torch.cat([images[:0] if self._images is None else self._images, images])[-SIZE:]
        self._seen += len(images)
        self._new += len(images)

    def _sample(self, images: Tensor) -> None:
        """Let some images take the places of others, drawn at random."""
        room = SIZE - (0 if self._images is None else len(self._images))
        if room:
            self._append(images[:room])
        late = images[room:]
        self._seen += len(late)
        share = max(SHARE, SIZE / max(1, self._seen))
        chosen = (torch.rand(len(late), generator=self._generator) < share).nonzero().flatten()[: SIZE // 2]
        places = torch.randperm(SIZE, generator=self._generator)[: len(chosen)]
        if len(chosen):
            assert self._images is not None
            # A copy that blocks would wait for all that the device has still to do.
            chosen, places = (index.to(images.device, non_blocking=True) for index in (chosen, places))
            self._images = self._images.index_copy(0, places, late[chosen])
        self._new += len(chosen)

    def state_dict(self) -> dict[str, Any]:
        """Return the images and what is known of the recent batches."""
        return {
            "generator": self._generator.get_state(),
            "images": self._images,
            "layouts": list(self._layouts),
            "chunks": self._chunks,
            "mixed": self._mixed,
            "seen": self._seen,
            "new": self._new,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self._generator.set_state(state["generator"])
        self._images, self._layouts = state["images"], list(state["layouts"])
        self._chunks, self._mixed = state["chunks"], state["mixed"]
        self._seen, self._new = state["seen"], state["new"]


def layouts(images: Tensor) -> Tensor:
    """Return a thumbnail of each image, without its brightness and contrast: objects show in it, the weather hardly."""
    images = images.float()
    if images.ndim == 4:
        small = F.adaptive_avg_pool2d(images, _SIDE).flatten(1)
    else:
        small = F.adaptive_avg_pool1d(images.flatten(1).unsqueeze(1), _SIDE * _SIDE).flatten(1)
    deviation, mean = torch.std_mean(small, dim=1, correction=0, keepdim=True)
    return (small - mean) / deviation.clamp_min(1e-3)


def variation(batches: list[Tensor]) -> Tensor:
    """Return how far the means of batches (each N x D) differ, in units of what chance makes of it: 1 if shuffled."""
    sizes = torch.tensor([len(batch) for batch in batches]).to(batches[0])
    means = torch.stack([batch.mean(dim=0) for batch in batches])
    centre = sizes @ means / sizes.sum()
    between = sizes @ (means - centre).square() / (len(batches) - 1)
    apart = torch.cat([batch - mean for batch, mean in zip(batches, means)])
    within = apart.square().sum(dim=0) / max(1, len(apart) - len(batches))
    return (between / within.clamp_min(1e-6)).mean()
