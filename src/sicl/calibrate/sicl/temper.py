"""Ask mixed images how overconfident the softmax is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sicl.calibrate._mixup import Pairs, mixture
from sicl.calibrate._passes import is_due
from sicl.calibrate._temperature import FEWEST

EVERY = 4
"""Mixed images are looked at every fourth batch, and more often at the start."""
MEMORY = 0.9 ** (1 / 64)
"""What mixed images count when one more is looked at: those of some ten batches of 64, in batches of any size."""
_LOG_TEMPERATURES = [-1.2 + 0.15 * i for i in range(17)]


class Temper:
    """Knows the temperature at which the network's softmax fits images mixed from the stream.

    The mixtures have labels: the class that the network gave the image with the larger share (as in PseudoCal). Nothing
    here waits for the device.

    Args:
        device: of the network.
        seed: of the pairing.
    """

    def __init__(self, device: torch.device, seed: int) -> None:
        self._pairs = Pairs(seed)
        self._grid = torch.tensor(_LOG_TEMPERATURES, device=device)
        self.reset()

    def reset(self) -> None:
        """Forget the mixed images."""
        self._pairs.reset()
        self._batches = 0
        self._loss, self._count = torch.zeros_like(self._grid), self._grid.new_zeros(())
        self.temperature = self._grid.new_ones(())

    @torch.no_grad()
    def observe(self, images: Tensor, labels: Tensor, predict: Callable[[Tensor], Tensor]) -> None:
        """Mix the batch's images, when it is time, and move the temperature.

        Args:
            images: the batch.
            labels: its predicted classes.
            predict: gives the network's float32 logits of images.
        """
        self._batches += 1
        if not is_due(self._batches - 1, EVERY):
            return
        others, other_labels = self._pairs.of(images, labels)
        logits = predict(mixture(images, others))
        # Pairs of one predicted class say nothing; they go through so that the batch is like the stream's.
        different = (labels != other_labels).float()
        scaled = logits / self._grid.exp().view(-1, 1, 1)
        chosen = scaled.gather(2, labels.view(1, -1, 1).expand(len(self._grid), -1, 1)).squeeze(2)
        loss = scaled.logsumexp(dim=2) - chosen
        kept = MEMORY ** len(images)
        self._loss = kept * self._loss + loss @ different
        self._count = kept * self._count + different.sum()
        enough = self._count >= FEWEST
        self.temperature = torch.where(enough, lowest(self._grid, self._loss).exp(), 1.0)

    def state_dict(self) -> dict[str, Any]:
        """Return what the next temperature depends on."""
        return {
            "pairs": self._pairs.state_dict(),
            "batches": self._batches,
            "loss": self._loss,
            "count": self._count,
            "temperature": self.temperature,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self._pairs.load_state_dict(state["pairs"])
        self._batches, self._loss, self._count = state["batches"], state["loss"], state["count"]
        self.temperature = state["temperature"]


def lowest(grid: Tensor, values: Tensor) -> Tensor:
    """Return where the parabola through the smallest value on an even grid and its neighbours is lowest."""
    # A position on the device as an index would wait for it; as a list of positions it does not.
    middle = values.argmin(dim=0, keepdim=True).clamp(1, len(grid) - 2)
    left, centre, right = (values.gather(0, middle + step) for step in (-1, 0, 1))
    bend = (left - 2 * centre + right).clamp_min(1e-12)
    shift = (0.5 * (left - right) / bend).clamp(-1.0, 1.0)
    return (grid.gather(0, middle) + shift * (grid[1] - grid[0])).squeeze(0)
