"""Batch norm of stacked batches on a GPU, with the addition and the ReLU after it: two kernels, three passes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sicl.engine.kernels.triton_or_none import device_of, fits_float32, jit, tl, triton, works

AVAILABLE = tl is not None
_PROGRAMS = 1024
_BLOCK_ROWS = 32


def usable(x: Tensor) -> bool:
    """Say whether the kernels can be used: feature maps on a GPU, channels last, no gradients, proven to work."""
    if x.device.type != "cuda" or not AVAILABLE or x.ndim != 4:
        return False
    if torch.is_grad_enabled() or not fits_float32(x):
        return False
    return x.is_contiguous(memory_format=torch.channels_last) and _proven(x.device)


def grouped_norm(
    x: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    *,
    other: Tensor | None = None,
    relu: bool = False,
    keep: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return relu(norm(x) + other), each of `groups` stacked batches with its own channel statistics.

    Args:
        x: (G N) x C x H x W, channels last.
        groups: G.
        weight: C, float32, or None.
        bias: C, float32, or None.
        eps: added to the variance.
        other: what is added, like `x`, or None.
        relu: whether negative values become 0.
        keep: C values each, float32, that are given the mean and the variance; for one group only.

    Raises:
        RuntimeError: the layout is not channels last.
    """
    layout = torch.channels_last
    if not x.is_contiguous(memory_format=layout) or (
        other is not None and not other.is_contiguous(memory_format=layout)
    ):
        raise RuntimeError("grouped_norm needs channels-last tensors")
    channels = x.shape[1]
    rows = x.numel() // channels // groups
    block = min(128, triton.next_power_of_2(channels))
    strips = triton.cdiv(channels, block)
    parts = max(1, min(_PROGRAMS // (groups * strips), triton.cdiv(rows, 4 * _BLOCK_ROWS)))
    per_part = triton.cdiv(triton.cdiv(rows, parts), _BLOCK_ROWS) * _BLOCK_ROWS
    sums = torch.empty((2, parts, groups, channels), device=x.device, dtype=torch.float32)
    sizes = {"BLOCK_M": _BLOCK_ROWS, "BLOCK_C": block}
    out = torch.empty_like(x)
    given = {"WEIGHT": weight, "BIAS": bias, "OTHER": other, "KEEP": keep}
    flags = {name: value is not None for name, value in given.items()}
    # A kernel takes tensors only: what is not given is never read, and any tensor stands for it.
    affine = (sums if weight is None else weight, sums if bias is None else bias)
    tensors = (x, x if other is None else other, out, sums, *affine, *(keep or (sums, sums)))
    shape, grid = (rows, channels, groups, parts, per_part), (parts, strips, groups)
    with device_of(x):
        _sums[grid](x, sums, *shape, **sizes)
        _normalise[grid](*tensors, *shape, eps, RELU=relu, **flags, **sizes)
    return out


@jit
def _sums(  # type: ignore[no-untyped-def]
    x, sums, rows, channels, groups, parts, per_part, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr
):
    part, strip, group = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    channel = strip * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channel < channels
    # Whole tiles are added up; what crosses threads is done once, at the end.
    totals = tl.zeros((BLOCK_M, BLOCK_C), dtype=tl.float32)
    squared = tl.zeros((BLOCK_M, BLOCK_C), dtype=tl.float32)
    # Sums of squares lose the variance of a channel far from 0: counted from a value of its own, they do not.
    origin = tl.load(x + group.to(tl.int64) * rows * channels + channel, mask=inside, other=0.0)
    first = part * per_part
    for offset in range(0, per_part, BLOCK_M):
        row = first + offset + tl.arange(0, BLOCK_M)
        mask = (row < rows)[:, None] & inside[None, :]
        place = (group.to(tl.int64) * rows + row)[:, None] * channels + channel[None, :]
        value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - origin.to(tl.float32)[None, :], 0.0)
        totals += value
        squared += value * value
    total, squares = tl.sum(totals, axis=0), tl.sum(squared, axis=0)
    # Partial sums, added in a fixed order later: atomics would make the result differ from run to run.
    place = (part * groups + group) * channels + channel
    tl.store(sums + place, total, mask=inside)
    tl.store(sums + parts * groups * channels + place, squares, mask=inside)


@jit
def _normalise(  # type: ignore[no-untyped-def]
    x,
    other,
    out,
    sums,
    weight,
    bias,
    kept_mean,
    kept_variance,
    rows,
    channels,
    groups,
    parts,
    per_part,
    eps,
    WEIGHT: tl.constexpr,
    BIAS: tl.constexpr,
    OTHER: tl.constexpr,
    RELU: tl.constexpr,
    KEEP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    part, strip, group = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    channel = strip * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channel < channels
    # Many partial sums at a time: one after the other, each would wait for its memory.
    totals = tl.zeros((BLOCK_M, BLOCK_C), dtype=tl.float32)
    squared = tl.zeros((BLOCK_M, BLOCK_C), dtype=tl.float32)
    for start in range(0, parts, BLOCK_M):
        number = start + tl.arange(0, BLOCK_M)
        mask = (number < parts)[:, None] & inside[None, :]
        place = (number * groups + group)[:, None] * channels + channel[None, :]
        totals += tl.load(sums + place, mask=mask, other=0.0)
        squared += tl.load(sums + parts * groups * channels + place, mask=mask, other=0.0)
    origin = tl.load(x + group.to(tl.int64) * rows * channels + channel, mask=inside, other=0.0)
    away = tl.sum(totals, axis=0) / rows
    variance = tl.maximum(tl.sum(squared, axis=0) / rows - away * away, 0.0)
    mean = origin.to(tl.float32) + away
    scale = 1.0 / tl.sqrt(variance + eps)
    if WEIGHT:
        scale = scale * tl.load(weight + channel, mask=inside, other=0.0).to(tl.float32)
    shift = tl.zeros((BLOCK_C,), dtype=tl.float32)
    if BIAS:
        shift = tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    if KEEP:  # noqa: SIM102
        # Nested, not one mask: Triton's interpreter makes integers of a vector and a scalar that are joined by `&`.
        if part == 0:
            tl.store(kept_mean + channel, mean, mask=inside)
            tl.store(kept_variance + channel, variance, mask=inside)
    for offset in range(0, per_part, BLOCK_M):
        row = part * per_part + offset + tl.arange(0, BLOCK_M)
        mask = (row < rows)[:, None] & inside[None, :]
        place = (group.to(tl.int64) * rows + row)[:, None] * channels + channel[None, :]
        value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32) - mean[None, :]
        value = value * scale[None, :] + shift[None, :]
        if OTHER:
            value += tl.load(other + place, mask=mask, other=0.0).to(tl.float32)
        if RELU:
            value = tl.maximum(value, 0.0)
        tl.store(out + place, value.to(out.dtype.element_ty), mask=mask)


@works
def _proven(normal: Callable[..., Tensor]) -> bool:
    x, other = (normal(6, 40, 5, 7).contiguous(memory_format=torch.channels_last) for _ in range(2))
    weight, bias = normal(40), normal(40)
    parts = [torch.nn.functional.batch_norm(p, None, None, weight, bias, True) for p in x.chunk(3)]
    found = grouped_norm(x, 3, weight, bias, 1e-5, other=other, relu=True)
    return torch.allclose(found, (torch.cat(parts) + other).relu(), atol=1e-4)
