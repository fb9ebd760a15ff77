"""RoTTA's robust batch norm: normalise with a slow average of the statistics, also while training."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sicl.errors import UnsupportedModelError
from sicl.models.norms import batch_norms


class RobustBatchNorm(_BatchNorm):
    """A batch norm whose running statistics move by `alpha` in training and normalise in both modes.

    In eval mode it is torch's. In training mode mean = (1 - alpha) running + alpha batch, likewise for the
    (biased) variance; gradients flow through the batch's share.

    Args:
        layer: the batch norm to replace; its parameters and buffers are taken over.
        alpha: share of the new batch in the running statistics.
    """

    def __init__(self, layer: _BatchNorm, alpha: float) -> None:
        nn.Module.__init__(self)
        self.num_features, self.eps, self.momentum = layer.num_features, layer.eps, alpha
        self.affine, self.track_running_stats = layer.affine, True
        self.weight, self.bias = layer.weight, layer.bias
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            self.register_buffer(name, getattr(layer, name))
        self.training = layer.training

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept what the replaced layer accepted: channels are dimension 1."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalise; in training mode the running statistics move first."""
        if not self.training:
            return super().forward(input)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.momentum is not None
        dims = [d for d in range(input.ndim) if d != 1]
        variance, mean = torch.var_mean(input.to(self.running_mean.dtype), dims, correction=0)
        mean = torch.lerp(self.running_mean, mean, self.momentum)
        variance = torch.lerp(self.running_var, variance, self.momentum)
        with torch.no_grad():
            self.running_mean.copy_(mean)
            self.running_var.copy_(variance)
        scale = torch.rsqrt(variance + self.eps)
        if self.weight is not None:
            scale = scale * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        shape = [1, -1] + [1] * (input.ndim - 2)
        return torch.addcmul(shift.view(shape).to(input.dtype), input, scale.view(shape).to(input.dtype))


def swap_batch_norms(network: nn.Module, alpha: float) -> nn.Module:
    """Replace every batch norm of a private copy by a robust one, and return the network.

    Raises:
        UnsupportedModelError: a batch norm has no running statistics to start from.
    """
    for layer in batch_norms(network):
        if layer.running_mean is None or layer.running_var is None:
            raise UnsupportedModelError(
                f"`Rotta` needs batch norms with running statistics; those of {type(network).__name__} have "
                "none. Use `Tent()`, which normalises with the batch."
            )
    if isinstance(network, _BatchNorm):
        return RobustBatchNorm(network, alpha)
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, _BatchNorm):
                setattr(parent, name, RobustBatchNorm(child, alpha))
    return network
