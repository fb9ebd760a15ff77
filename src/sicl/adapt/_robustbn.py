"""RoTTA's robust batch norm: normalise with a slow average of the statistics, also while training."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sicl.engine.norms import batch_norms
from sicl.errors import UnsupportedModelError


class _Normalise(torch.autograd.Function):
    """(x - m) / sqrt(v + eps) * weight + bias where m and v hold a share alpha of the batch's own statistics.

    Forward and most of the way back are torch's fused evaluation kernels; the statistics' share adds
    alpha / n * (dL/dm + 2 dL/dv (x - batch mean)), with dL/dm = -w r db and dL/dv = -w r^2 dw / 2.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
        """Normalise; `rest` is (m, v, batch mean, alpha, eps)."""
        mean, variance, batch_mean, ctx.alpha, ctx.eps = rest
        ctx.save_for_backward(x, weight, mean, variance, batch_mean)
        return F.batch_norm(x, mean, variance, weight, bias, training=False, eps=ctx.eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, weight and bias."""
        x, weight, mean, variance, batch_mean = ctx.saved_tensors
        inverse = torch.rsqrt(variance + ctx.eps)
        # Evaluation needs no saved statistics, but the channels-last kernels of a GPU insist on some.
        dx, dweight, dbias = torch.ops.aten.native_batch_norm_backward(
            gradients[0], x, weight, mean, variance, mean, inverse, False, ctx.eps, [True, True, True]
        )
        share = -ctx.alpha * x.shape[1] / x.numel()
        scaled = share * weight * inverse
        slope = scaled * inverse * dweight
        level = scaled * dbias - slope * batch_mean
        shape = [1, -1] + [1] * (x.ndim - 2)
        dx = torch.addcmul(dx + level.view(shape).to(dx.dtype), x, slope.view(shape).to(x.dtype))
        return dx, dweight, dbias, None, None, None, None, None


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
        with torch.no_grad():
            variance, mean = torch.var_mean(input.to(self.running_mean.dtype), dims, correction=0)
            self.running_mean = torch.lerp(self.running_mean, mean, self.momentum)
            self.running_var = torch.lerp(self.running_var, variance, self.momentum)
        weight = torch.ones_like(mean) if self.weight is None else self.weight
        bias = torch.zeros_like(mean) if self.bias is None else self.bias
        statistics = (self.running_mean, self.running_var, mean)
        out: Tensor = _Normalise.apply(input, weight, bias, *statistics, self.momentum, self.eps)  # type: ignore[no-untyped-call]
        return out


def swap_batch_norms(network: nn.Module, alpha: float) -> nn.Module:
    """Replace every batch norm of a private copy by a robust one, and return the network.

    Raises:
        UnsupportedModelError: a batch norm has no running statistics to start from.
    """
    swapped: dict[nn.Module, RobustBatchNorm] = {}
    for layer in batch_norms(network):
        if layer.running_mean is None or layer.running_var is None:
            raise UnsupportedModelError(
                f"`Rotta` needs batch norms with running statistics; those of {type(network).__name__} have "
                "none. Use `Tent()`, which normalises with the batch."
            )
        swapped[layer] = RobustBatchNorm(layer, alpha)
    for parent in list(network.modules()):
        # Not `named_children`: it names a layer that is used twice only once.
        for name, child in parent._modules.items():
            if child in swapped:
                parent._modules[name] = swapped[child]
    return swapped.get(network, network)
