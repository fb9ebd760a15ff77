"""Convolutions and norms with a fused end (ReLU, or addition and ReLU) where a backend has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sicl.engine.kernels.norm import AVAILABLE, grouped_norm


@dataclass(frozen=True)
class Kernels:
    """Convolutions take the arguments of `aten.convolution`, and what is added as one more.

    Args:
        relu: relu(convolution).
        add_relu: relu(convolution + other).
        norm: batch norm of stacked batches, as `sicl.engine.kernels.norm.grouped_norm`; None if there is none.
    """

    relu: Callable[..., Tensor]
    add_relu: Callable[..., Tensor]
    norm: Callable[..., Tensor] | None = None


def kernels_for(device: torch.device) -> Kernels | None:
    """Return the kernels of a device, or None if it has none."""
    if device.type == "cuda" and torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]
        return Kernels(_cudnn_relu, _cudnn_add_relu, grouped_norm if AVAILABLE else None)
    if device.type == "cpu" and torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return Kernels(_onednn_relu, _onednn_add_relu)
    return None


# Of `aten.convolution`'s arguments the fused kernels take stride, padding, dilation and groups, each in its own order.
def _onednn_relu(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    stride, padding, dilation, _, _, groups = rest
    fused: Any = torch.ops.mkldnn._convolution_pointwise
    out: Tensor = fused(x, weight, bias, padding, stride, dilation, groups, "relu", [], "")
    return out


def _onednn_add_relu(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    stride, padding, dilation, _, _, groups, other = rest
    fused: Any = torch.ops.mkldnn._convolution_pointwise.binary
    end: tuple[Any, ...] = (groups, "add", None, "relu", [], None)
    out: Tensor = fused(x, other, weight, bias, padding, stride, dilation, *end)
    return out


def _cudnn_relu(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    stride, padding, dilation, _, _, groups = rest
    return torch.cudnn_convolution_relu(x, weight, bias, stride, padding, dilation, groups)


def _cudnn_add_relu(x: Tensor, weight: Tensor, bias: Tensor, *rest: Any) -> Tensor:
    stride, padding, dilation, _, _, groups, other = rest
    return torch.cudnn_convolution_add_relu(x, weight, other, 1.0, bias, stride, padding, dilation, groups)
