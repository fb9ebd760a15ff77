"""Write variants out on a GPU in one pass: every value read from the cache, written once."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sicl.engine.kernels.triton_or_none import device_of, fits_float32, jit, tl, triton, works

_BLOCK = 2048


def usable(features: Tensor) -> bool:
    """Say whether the kernels can be used: on a GPU with Triton, channels last, no gradients, proven to work."""
    if features.device.type != "cuda" or tl is None or torch.is_grad_enabled() or not fits_float32(features):
        return False
    layout = torch.channels_last if features.ndim == 4 else torch.contiguous_format
    return features.is_contiguous(memory_format=layout) and _proven(features.device)


def affine(features: Tensor, scale: Tensor, shift: Tensor, out: Tensor) -> Tensor:
    """Write scale f + shift (both V x N x C) to `out`, (V N) features with their channels last."""
    inner, channels, rows = _sizes(features)
    grid = (len(out), triton.cdiv(inner, _BLOCK))
    tensors = (features, scale.contiguous(), shift.contiguous(), out)
    with device_of(features):
        _affine[grid](*tensors, inner, channels, rows, BLOCK=_BLOCK)
    return out


def noisy(
    features: Tensor, std: Tensor, blocks: Tensor, windows: Tensor | None, step: int, out: Tensor
) -> Tensor:
    """Write f + std e to `out`, (V N) features; e is each sample's window of each variant's block (V x L)."""
    inner, channels, rows = _sizes(features)
    grid = (len(out), triton.cdiv(inner, _BLOCK))
    blocks = blocks.contiguous()
    tensors = (features, std.contiguous(), blocks, blocks if windows is None else windows, out)
    sizes = (inner, channels, rows, blocks.shape[1], step)
    with device_of(features):
        _noisy[grid](*tensors, *sizes, CHOSEN=windows is not None, BLOCK=_BLOCK)
    return out


def _sizes(features: Tensor) -> tuple[int, int, int]:
    """(values in a sample, channels, samples)."""
    channels = features.shape[1] if features.ndim == 4 else features.shape[2]
    return features[0].numel(), channels, len(features)


@jit
def _affine(  # type: ignore[no-untyped-def]
    features, scale, shift, out, inner, channels, rows, BLOCK: tl.constexpr
):
    row = tl.program_id(0)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = place < inner
    channel = row * channels + place % channels
    base = (row % rows).to(tl.int64) * inner
    value = tl.load(features + base + place, mask=mask).to(tl.float32)
    value = value * tl.load(scale + channel, mask=mask).to(tl.float32)
    value += tl.load(shift + channel, mask=mask).to(tl.float32)
    tl.store(out + row.to(tl.int64) * inner + place, value.to(out.dtype.element_ty), mask=mask)


@jit
def _noisy(  # type: ignore[no-untyped-def]
    features,
    std,
    blocks,
    windows,
    out,
    inner,
    channels,
    rows,
    length,
    step,
    CHOSEN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    sample, variant = row % rows, row // rows
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = place < inner
    window = sample.to(tl.int64)
    if CHOSEN:
        window = tl.load(windows + sample).to(tl.int64)
    noise = tl.load(blocks + variant.to(tl.int64) * length + window * step + place, mask=mask).to(tl.float32)
    value = tl.load(features + sample.to(tl.int64) * inner + place, mask=mask).to(tl.float32)
    value += noise * tl.load(std + sample * channels + place % channels, mask=mask).to(tl.float32)
    tl.store(out + row.to(tl.int64) * inner + place, value.to(out.dtype.element_ty), mask=mask)


@works
def _proven(normal: Callable[..., Tensor]) -> bool:
    maps = normal(5, 6, 7, 9).contiguous(memory_format=torch.channels_last)
    scale, shift, std, blocks = normal(3, 5, 6), normal(3, 5, 6), normal(5, 6), normal(3, 1000)
    rows = torch.tensor([4, 0, 2, 3, 1], device=maps.device)
    expected = (maps * scale[..., None, None] + shift[..., None, None]).flatten(0, 1)
    out = torch.empty_like(expected, memory_format=torch.channels_last)
    good = torch.allclose(affine(maps, scale, shift, out), expected, atol=1e-5)
    for windows, order in ((None, range(5)), (rows, rows.tolist())):
        cut = torch.stack([blocks[:, 97 * i : 97 * i + 378] for i in order], 1).view(3, 5, 7, 9, 6)
        expected = (maps + std[..., None, None] * cut.movedim(-1, 2)).flatten(0, 1)
        good &= torch.allclose(noisy(maps, std, blocks, windows, 97, out), expected, atol=1e-5)
    return good
