"""Perturb the style or the content of features: pure functions, all randomness passed in.

Features are feature maps (N x C x H x W; statistics over H and W) or tokens (N x L x C; statistics over L, as
in TFS-ViT). Variants are stacked along dimension 0, variant after variant: V batches of N rows.
Every style change is one affine map per sample and channel, f' = a f + b, so it is made in one pass.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sicl.engine.kernels import variants as triton_variants
from sicl.errors import InputError

EPSILON = 1e-5
"""Added to a standard deviation before dividing by it (dead channels have exactly 0)."""

WINDOW_STEP = 97
"""By how much the noise windows of neighbouring samples are shifted: prime, so that channels differ too."""

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


def style_map(mean: Tensor, std: Tensor, noise_mean: Tensor, noise_std: Tensor) -> tuple[Tensor, Tensor]:
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


def room_for(features: Tensor, variants: int) -> Tensor:
    """Return memory for (V N) features, with their channels last."""
    layout = torch.channels_last if features.ndim == 4 else torch.contiguous_format
    size = (variants * len(features), *features.shape[1:])
    return torch.empty(size, dtype=features.dtype, device=features.device, memory_format=layout)


def apply_map(features: Tensor, scale: Tensor, shift: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return a f + b for every variant: V x N x C maps on N features give (V N) features, in f's dtype.

    They are written to `out`, if given: memory as of `room_for`.
    """
    if triton_variants.usable(features):
        out = room_for(features, len(scale)) if out is None else out
        return triton_variants.affine(features, scale, shift, out)
    base = _channels_last(features).unsqueeze(0)
    return _sum_of(_per_channel(shift, features), base, _per_channel(scale, features), features, out)


def content_variants(features: Tensor, std: Tensor, noise: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return f + std e for every variant: noise on the whitened features, then the style put back.

    Args:
        features: N x C x H x W or N x L x C.
        std: N x C, the features' channel standard deviations.
        noise: V x (features' shape).
        out: where to write them, if given: memory as of `room_for`.
    """
    base = _channels_last(features).unsqueeze(0)
    inner = noise.movedim(2, -1) if features.ndim == 4 else noise
    return _sum_of(base, _per_channel(std.unsqueeze(0), features), inner, features, out)


def window_variants(
    features: Tensor, std: Tensor, blocks: Tensor, rows: Tensor | None = None, *, out: Tensor | None = None
) -> Tensor:
    """Return f + std e for every variant, e being each sample's window of the variant's block (`windows`).

    Args:
        features: N x C x H x W or N x L x C.
        std: N x C.
        blocks: V x `block_length(features)`, float32.
        rows: the number of each sample's window, if not 0, 1, 2, ...
        out: where to write them, if given: memory as of `room_for`.
    """
    if triton_variants.usable(features):
        out = room_for(features, len(blocks)) if out is None else out
        return triton_variants.noisy(features, std, blocks, rows, WINDOW_STEP, out)
    return content_variants(features, std, windows(blocks.to(features.dtype), features, rows), out=out)


def dropout_variants(features: Tensor, keep: Tensor, p: float) -> Tensor:
    """Return f * keep / (1 - p) for every variant; `keep` is V x (features' shape), boolean."""
    return (features.unsqueeze(0) * keep.to(features.dtype) / (1 - p)).flatten(0, 1)


def block_length(features: Tensor) -> int:
    """Return how many normal values a variant's noise block needs so that every sample has its window."""
    return features[0].numel() + WINDOW_STEP * (len(features) - 1)


def windows(blocks: Tensor, features: Tensor, rows: Tensor | None = None) -> Tensor:
    """Return each sample's window of each variant's noise block, as V x (features' shape), without a copy.

    Windows of one block overlap, shifted by `WINDOW_STEP` values from sample to sample. All values that one
    sample sees in one variant are independent, so are those of different variants, and so are those of two
    samples at the same place; only what two samples see at different places can be the same number. Drawing
    a block instead of V x N feature maps is what makes content noise cheap.

    Args:
        blocks: V x `block_length(features)`.
        features: N x C x H x W or N x L x C.
        rows: the number of each sample's window, if not 0, 1, 2, ...
    """
    size = features[0].numel()
    cut = blocks.unfold(1, size, WINDOW_STEP)
    cut = cut[:, : len(features)] if rows is None else cut[:, rows]
    if features.ndim == 3:
        return cut.view(*cut.shape[:2], *features.shape[1:])
    channels, height, width = features.shape[1:]
    return cut.view(*cut.shape[:2], height, width, channels).movedim(-1, 2)


def _content_dims(features: Tensor) -> tuple[int, ...]:
    if features.ndim == 4:
        return (2, 3)
    if features.ndim == 3:
        return (1,)
    raise InputError(
        "Style statistics need feature maps (N x C x H x W) or tokens (N x L x C), got features of shape "
        f"{tuple(features.shape)}; name another `layer`."
    )


def _channels_last(features: Tensor) -> Tensor:
    """Features with the channels as last dimension: tokens have it so."""
    return features.movedim(1, -1) if features.ndim == 4 else features


def _sum_of(base: Tensor, one: Tensor, other: Tensor, features: Tensor, out: Tensor | None) -> Tensor:
    """Return base + one other, V x N with the channels as last dimension, as (V N) features; or write it there."""
    if out is None:
        # Gradients flow through what is not written to a given place.
        made = torch.addcmul(base, one, other).flatten(0, 1)
        return made.movedim(-1, 1) if features.ndim == 4 else made
    inner = _channels_last(out)
    torch.addcmul(base, one, other, out=inner.view(-1, len(features), *inner.shape[1:]))
    return out


def _per_channel(values: Tensor, features: Tensor) -> Tensor:
    """V x N x C values, shaped to meet V x N x (features, channels last), in the features' dtype."""
    values = values.to(features.dtype)
    if features.ndim == 3:
        return values.unsqueeze(2)
    values = values[:, :, None, None]
    if features.device.type == "cpu":
        # Whole image rows instead of single pixels make the inner loop long enough for vector code.
        values = values.expand(-1, -1, 1, features.shape[-1], -1).contiguous()
    return values
