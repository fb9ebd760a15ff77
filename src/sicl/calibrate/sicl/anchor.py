"""The anchor: the network as it was when SICL was attached to it, beside the one that has adapted since."""

from __future__ import annotations

import copy

from torch import Tensor, nn

from sicl.calibrate._passes import predicted_logits
from sicl.engine.norms import batch_norms, norm_layers


class Anchor:
    """A network with the parameters of the time of attachment and the live network's norm statistics.

    Only what may adapt is copied (the affine parameters of norm layers, and whatever has gradients on); all
    other parameters and buffers are shared with the live network.

    Args:
        live: the network, at attachment.
    """

    def __init__(self, live: nn.Module) -> None:
        self.live = live
        affine = {id(p) for _, module in norm_layers(live) for p in module.parameters(recurse=False)}
        kept = {name: p for name, p in live.named_parameters() if id(p) in affine or p.requires_grad}
        ids = {id(p) for p in kept.values()}
        shared = {id(t): t for t in (*live.parameters(), *live.buffers()) if id(t) not in ids}
        self.network = copy.deepcopy(live, shared)
        for name in kept:
            parameter = self.network.get_parameter(name)
            parameter.requires_grad_(False).grad = None
        self.adapts = any(parameter.requires_grad for parameter in live.parameters())
        """Whether the live network has parameters that may move."""
        self._pairs = list(zip(batch_norms(live), batch_norms(self.network)))

    def follow(self) -> nn.Module:
        """Take over the live network's modes and statistics as they are now; return the network."""
        for live, own in self._pairs:
            # Plain attributes: a module's own way to set one looks through its tables first.
            own.__dict__.update(training=live.training, track_running_stats=live.track_running_stats)
            own._buffers.update(live._buffers)
        return self.network

    def logits(self, images: Tensor) -> Tensor:
        """Return what the anchor says about a batch."""
        return predicted_logits(self.follow(), images)
