"""The anchor: the network as it was when SICL was attached to it, its early batch norms by the batch at hand."""

from __future__ import annotations

import copy

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sicl.calibrate._passes import predicted_logits
from sicl.engine.norms import (
    batch_norms,
    can_group,
    early_norms,
    is_torchs,
    norm_layers,
    only_normalises,
    statistics_of,
)


class Anchor:
    """A network with the parameters and running statistics of the time of attachment, beside the live one.

    What damages images shifts what early layers see; which classes a batch holds shifts what late ones do. So early
    batch norms use the statistics of the batch, and late ones the running ones, where they have any.

    Only what may adapt is copied (the affine parameters of norm layers, whatever has gradients on, and running
    statistics); all other parameters and buffers are shared with the live network.

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
        self.differs = self.adapts or any(norm.running_mean is not None for norm in batch_norms(live))
        """Whether the anchor may say anything else than the live network."""
        self.comparable = not any(statistics_of(norm) == "running" for norm in batch_norms(live))
        """Whether what the two tell differs by training alone: not where the live network's statistics are others."""
        early = set(early_norms(self.network))
        for norm in batch_norms(self.network):
            # What another author's layer does with a batch's statistics is not for us to say.
            by_the_batch = norm in early and can_group(norm)
            if by_the_batch and not is_torchs(norm) and only_normalises(norm):
                # A robust norm in training mode keeps averages of its own.
                norm.__class__ = _Plain
            if by_the_batch or norm.running_mean is not None:
                norm.training, norm.track_running_stats = by_the_batch, not by_the_batch
            norm._buffers.update({name: t.clone() for name, t in norm._buffers.items() if t is not None})
        self.dependent = any(statistics_of(norm) == "batch" for norm in batch_norms(self.network))
        """Whether what it says about an image depends on the others of the batch."""

    def logits(self, images: Tensor) -> Tensor:
        """Return what the anchor says about a batch."""
        return predicted_logits(self.network, images)


class _Plain(_BatchNorm):
    """Torch's batch norm, for input of any number of dimensions."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept what the layer accepted."""
