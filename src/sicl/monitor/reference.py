"""What the network knows: features of samples that are well, and how near new ones lie to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

NEIGHBOURS = 5
"""A sample is as near as its fifth neighbour: one odd sample in the reference makes nothing familiar."""


@dataclass(frozen=True)
class Reference:
    """Samples on which the network is known, or taken, to be well.

    Args:
        features: N x D, of unit length: what entered the classifier's head.
        similarities: N, sorted: each one's similarity to its fifth neighbour among the others.
        confidence: their mean confidence.
        origin: "source" data, or the stream's "first window".
    """

    features: Tensor
    similarities: Tensor
    confidence: float
    origin: str

    @classmethod
    def of(cls, features: Tensor, confidence: Tensor, origin: str) -> Reference:
        """Return the reference that these samples make."""
        bank = nn.functional.normalize(features.detach().float(), dim=1)
        among = bank @ bank.T
        nearest = _nearest(among.fill_diagonal_(-torch.inf), len(bank) - 1)
        return cls(bank, nearest.sort().values, float(confidence.mean()), origin)

    @torch.no_grad()
    def familiarity(self, features: Tensor) -> Tensor:
        """Return, for each sample, the share of the reference that lies less near to the rest of it.

        A sample like those of the reference has familiarity one half in the mean; one that is stranger than all
        of them has 0.
        """
        unit = nn.functional.normalize(features.float(), dim=1).to(self.features.device)
        nearest = _nearest(unit @ self.features.T, len(self.features))
        # A tie counts one half: networks with constant features are neither strange nor familiar.
        below = torch.searchsorted(self.similarities, nearest, right=False)
        up_to = torch.searchsorted(self.similarities, nearest, right=True)
        return (below + up_to).float() / (2 * len(self.similarities))

    def state_dict(self) -> dict[str, Any]:
        """Return everything."""
        return dict(vars(self))


def _nearest(similarities: Tensor, others: int) -> Tensor:
    return similarities.topk(max(1, min(NEIGHBOURS, others)), dim=1).values[:, -1].contiguous()


class FeatureTap:
    """Takes what enters a network's last linear layer while it predicts, and leaves no hook behind.

    Args:
        network: any classifier; one without linear layers has no features, and its logits stand in for them.
    """

    def __init__(self, network: nn.Module) -> None:
        self._linears = [module for module in network.modules() if isinstance(module, nn.Linear)]
        self._last: Tensor | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """Watch the network."""
        self._last = None
        handles = [linear.register_forward_pre_hook(self._see) for linear in self._linears]
        self._handles = handles
        try:
            yield
        finally:
            self.close()

    def close(self) -> None:
        """Stop watching: a calibrator runs the network too."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def features(self, logits: Tensor) -> Tensor:
        """Return the features of the prediction just made, N x D."""
        seen = self._last
        if seen is None or len(seen) != len(logits):
            return logits
        return seen if seen.ndim == 2 else seen.flatten(1, -2).mean(dim=1)

    def _see(self, _module: nn.Module, inputs: tuple[Any, ...]) -> None:
        if inputs:
            self._last = inputs[0].detach()
