"""Perturb the style or the content of features: pure functions, all randomness passed in.

Features are feature maps (N x C x H x W; statistics over H and W) or tokens (N x L x C; statistics over L, as
in TFS-ViT). Variants are stacked along dimension 0, variant after variant: V batches of N rows.
Every style change is one affine map per sample and channel, f' = a f + b, so it is made in one pass.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sicl.errors import InputError

EPSILON = 1e-5
"""Added to a standard deviation before dividing by it (dead channels have exactly 0)."""

Components = Literal["both", "mean", "std"]


def style_statistics(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the (mean, biased standard deviation) of each sample's channels, both N x C, in float32."""
    variance, mean = torch.var_mean(features.float(), dim=_content_dims(features), correction=0)
    return mean, variance.sqrt()


def spread(means: Tensor, *, per: Literal["channel", "global"] = "channel") -> Tensor:
    """Return delta, the biased standard deviation of `means` (N x C) over the batch: C values, or one."""
    if per == "channel":
        return means.std(dim=0, correction=0)
    return means.std(correction=0)


def style_map(
    mean: Tensor,
    std: Tensor,
    noise_mean: Tensor,
    noise_std: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return (a, b) with a f + b = (std + noise_std) (f - mean) / std + mean + noise_mean.

    Args:
        mean: N x C.
        std: N x C.
        noise_mean: V x N x C, what is added to the mean (delta e1 in the paper).
        noise_std: V x N x C, what is added to the standard deviation (delta e2 in the paper).
    """
    scale = (std + noise_std) / (std + EPSILON)
    return scale, mean + noise_mean - scale * mean


def mixstyle_map(mean: Tensor, std: Tensor, partner: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
    """Return (a, b) of the map to a style mixed with another sample's (Zhou et al., 2021).

    Args:
        mean: N x C.
        std: N x C.
        partner: V x N, int64, the row each sample mixes with.
        share: V x N in [0, 1], how much of its own style a sample keeps.
    """
    keep = share.unsqueeze(-1)
    mixed_mean = keep * mean + (1 - keep) * mean[partner]
    mixed_std = keep * std + (1 - keep) * std[partner]
    scale = mixed_std / (std + EPSILON)
    return scale, mixed_mean - scale * mean


def apply_map(features: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Return a f + b for every variant: V x N x C maps on N features give (V N) features, in f's dtype."""
    shape = _channel_shape(features, scale.shape)
    stacked = torch.addcmul(
        shift.to(features.dtype).view(shape), features.unsqueeze(0), scale.to(features.dtype).view(shape)
    )
    return stacked.flatten(0, 1)


def content_variants(features: Tensor, std: Tensor, noise: Tensor) -> Tensor:
    """Return f + std e for every variant: noise on the whitened features, then the style put back.

    Args:
        features: N x C x H x W or N x L x C.
        std: N x C, the features' channel standard deviations.
        noise: V x (features' shape).
    """
    shape = _channel_shape(features, (1, *std.shape))
    return torch.addcmul(features.unsqueeze(0), std.to(features.dtype).view(shape), noise).flatten(0, 1)


def dropout_variants(features: Tensor, keep: Tensor, p: float) -> Tensor:
    """Return f * keep / (1 - p) for every variant; `keep` is V x (features' shape), boolean."""
    return (features.unsqueeze(0) * keep.to(features.dtype) / (1 - p)).flatten(0, 1)


def _content_dims(features: Tensor) -> tuple[int, ...]:
    if features.ndim == 4:
        return (2, 3)
    if features.ndim == 3:
        return (1,)
    raise InputError(
        "Style statistics need feature maps (N x C x H x W) or tokens (N x L x C), got features of shape "
        f"{tuple(features.shape)}; name another `layer`."
    )


def _channel_shape(features: Tensor, shape: torch.Size | tuple[int, ...]) -> tuple[int, ...]:
    """The shape that lets V x N x C values meet V x N x (features)."""
    variants, rows, channels = shape
    return (variants, rows, 1, channels) if features.ndim == 3 else (variants, rows, channels, 1, 1)
