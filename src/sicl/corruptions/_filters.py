"""Linear filters whose results do not depend on batch, thread count or device.

Sums are either exact (float64 with weights that are multiples of a power of two) or made of single rounded
operations in a fixed order.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt
import torch
from scipy.ndimage import correlate1d
from torch import Tensor

_Array = npt.NDArray[np.float64]
_Index = npt.NDArray[np.int64]

_WEIGHT_BITS = 18
_NEGLIGIBLE = 1e-7


def to_uint8(values: Tensor) -> Tensor:
    """Clip grey levels to 0 .. 255 and drop their fraction, as the reference's cast does."""
    return values.clamp(0, 255).to(torch.uint8)


def divide(values: Tensor, by: float) -> Tensor:
    """Return `values` / `by`, rounded once: CUDA divides by a plain number through its reciprocal."""
    return values / torch.full((1,), by, dtype=values.dtype, device=values.device)


def smooth(images: Tensor, sigma: float, *, truncate: float = 4.0, mode: str = "nearest") -> Tensor:
    """Return N x H x W x C float64: a Gaussian filter cut at `truncate` deviations.

    `images` must be multiples of 2**-12 below 256 in size: then every sum is exact.
    """
    height, width = images.shape[1:3]
    rows = _gaussian_matrix(height, sigma, truncate, mode).to(images.device)
    columns = _gaussian_matrix(width, sigma, truncate, mode).to(images.device)
    planes = images.double().permute(0, 3, 2, 1)
    return ((planes @ rows.T).transpose(2, 3) @ columns.T).permute(0, 2, 3, 1)


@functools.lru_cache(maxsize=64)
def _gaussian_matrix(size: int, sigma: float, truncate: float, mode: str) -> Tensor:
    radius = int(truncate * sigma + 0.5)
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2) if sigma > 0 else np.ones(1)
    weights = np.round(weights / weights.sum() * 2**_WEIGHT_BITS) / 2**_WEIGHT_BITS
    weights[radius] += 1.0 - weights.sum()
    matrix = np.zeros((size, size))
    for offset, weight in zip(offsets, weights):
        places = border(torch.arange(size) + int(offset), size, mode)
        np.add.at(matrix, (np.arange(size), places.numpy()), weight)
    return torch.from_numpy(matrix)


def border(index: Tensor, size: int, mode: str) -> Tensor:
    """Map indices outside 0 .. size - 1 back inside.

    `nearest` is aaa|abcd|ddd, `reflect` is cba|abcd|dcb, `mirror` is dcb|abcd|cba.
    """
    if mode == "nearest":
        return index.clamp(0, size - 1)
    period = 2 * size if mode == "reflect" else max(2 * size - 2, 1)
    folded = torch.remainder(index, period)
    return torch.minimum(folded, (period - 1 if mode == "reflect" else period) - folded)


def pad(images: Tensor, rows: tuple[int, int], columns: tuple[int, int], mode: str) -> Tensor:
    """Return N x H x W x C `images` with `rows` and `columns` (before, after) added by `border`."""
    height, width = images.shape[1:3]
    row_index = border(torch.arange(-rows[0], height + rows[1]), height, mode)
    column_index = border(torch.arange(-columns[0], width + columns[1]), width, mode)
    images = images.index_select(1, row_index.to(images.device))
    return images.index_select(2, column_index.to(images.device))


@functools.lru_cache(maxsize=16)
def _disk(radius: float, alias_sigma: float) -> tuple[tuple[float, ...], ...]:
    """The upper left quarter, centre included, of a disk smoothed against aliasing."""
    reach, taps = (8, 1) if radius <= 8 else (int(radius), 2)
    line = np.arange(-reach, reach + 1)
    inside = (line[:, None] ** 2 + line[None] ** 2 <= radius**2).astype(np.float64)
    smoothing = np.exp(-0.5 * (np.arange(-taps, taps + 1) / alias_sigma) ** 2)
    smoothing /= smoothing.sum()
    kernel = inside / inside.sum()
    for axis in (0, 1):
        kernel = correlate1d(kernel, smoothing, axis=axis, mode="mirror")
    return tuple(tuple(row[reach:]) for row in kernel[reach:])


def defocus(images: Tensor, radius: float, alias_sigma: float) -> Tensor:
    """Return N x H x W x C float32: `images` seen through a smoothed disk, edges mirrored."""
    quarter = _disk(radius, alias_sigma)
    kept = [len([w for w in row if w > _NEGLIGIBLE]) for row in quarter]
    reach = max(kept[0], sum(1 for k in kept if k)) - 1
    height, width = images.shape[1:3]
    padded = pad(images.float(), (reach, reach), (reach, reach), "mirror")
    total = torch.zeros_like(images, dtype=torch.float32)
    for dy, row in enumerate(quarter[: reach + 1]):
        # the kernel is symmetric: add the mirrored pixels first (exact: they are integers), multiply once
        lines = padded[:, reach + dy : reach + dy + height]
        if dy:
            lines = lines + padded[:, reach - dy : reach - dy + height]
        for dx in range(kept[dy]):
            pixels = lines[:, :, reach + dx : reach + dx + width]
            if dx:
                pixels = pixels + lines[:, :, reach - dx : reach - dx + width]
            total += pixels * row[dx]
    return total


def centre_zoom(images: Tensor, factor: float) -> Tensor:
    """Return the centre of N x H x W x C float `images` enlarged by `factor`, same size, linear."""
    for axis in (1, 2):
        low, share = _zoom_index(images.shape[axis], factor)
        first = torch.from_numpy(low).to(images.device)
        weight = torch.from_numpy(share).to(images).reshape([-1 if d == axis else 1 for d in range(4)])
        below = images.index_select(axis, first)
        above = images.index_select(axis, (first + 1).clamp(max=images.shape[axis] - 1))
        images = above.sub_(below).mul_(weight).add_(below)
    return images


@functools.lru_cache(maxsize=256)
def _zoom_index(size: int, factor: float) -> tuple[_Index, _Array]:
    """Where each output pixel reads: index of the pixel before it, and the share of the one after.

    The crop of ceil(size / factor) pixels is stretched corner to corner and trimmed to `size`.
    """
    crop = math.ceil(size / factor)
    stretched = max(round(crop * factor), size)
    trim = (stretched - size) // 2
    places = (np.arange(size) + trim) * ((crop - 1) / max(stretched - 1, 1))
    low = np.floor(places).astype(np.int64)
    return low + (size - crop) // 2, places - low


@functools.lru_cache(maxsize=32)
def _box_matrix(size: int, new_size: int) -> Tensor:
    """Box-filter resampling weights in 22-bit fixed point, as Pillow has them."""
    scale = size / new_size
    support = 0.5 * max(scale, 1.0)
    matrix = np.zeros((new_size, size))
    for row in range(new_size):
        centre = (row + 0.5) * scale
        first, last = max(int(centre - support + 0.5), 0), min(int(centre + support + 0.5), size)
        distance = (np.arange(first, last) - centre + 0.5) / max(scale, 1.0)
        inside = ((distance > -0.5) & (distance <= 0.5)).astype(np.float64)
        matrix[row, first:last] = np.floor(inside / inside.sum() * 2**22 + 0.5) / 2**22
    return torch.from_numpy(matrix)


def box_resize(images: Tensor, height: int, width: int) -> Tensor:
    """Resize N x H x W x C `images` of grey levels with a box filter, rounding after each axis."""
    columns = _box_matrix(images.shape[2], width).to(images.device)
    rows = _box_matrix(images.shape[1], height).to(images.device)
    planes = images.double().permute(0, 3, 1, 2)
    planes = (planes @ columns.T + 0.5).floor_().transpose(2, 3)
    return (planes @ rows.T + 0.5).floor_().permute(0, 3, 2, 1)


def motion(images: Tensor, radius: float, sigma: float, angles: _Array) -> Tensor:
    """Return N x H x W x C grey levels: each image moved along its own angle, half-Gaussian weights.

    The rule is ImageMagick's: 2 radius + 1 taps on one side, at whole pixels, edges repeated. Fractions are
    dropped, as in the reference images.
    """
    taps = np.arange(2 * math.ceil(radius) + 1)
    weights = np.exp(-0.5 * (taps / sigma) ** 2)
    weights /= weights.sum()
    # sorted by angle, images with equal offsets lie together: each tap is then a few plain slices
    order = np.argsort(angles, kind="stable")
    radians = np.deg2rad(angles[order])[:, None]
    dx = np.ceil(taps * np.cos(radians) - 0.5).astype(np.int64)
    dy = np.ceil(taps * np.sin(radians) - 0.5).astype(np.int64)
    top, left = int(-min(dy.min(), 0)), int(-min(dx.min(), 0))
    turned = images.float().index_select(0, torch.from_numpy(order).to(images.device))
    padded = pad(turned, (top, int(max(dy.max(), 0))), (left, int(max(dx.max(), 0))), "nearest")
    height, width = images.shape[1:3]
    total = torch.zeros_like(turned)
    for tap in np.flatnonzero(weights > _NEGLIGIBLE):
        change = np.flatnonzero(np.diff(dx[:, tap]) | np.diff(dy[:, tap])) + 1
        for start, stop in zip([0, *change], [*change, len(order)]):
            y, x = top + int(dy[start, tap]), left + int(dx[start, tap])
            total[start:stop] += padded[start:stop, y : y + height, x : x + width] * float(weights[tap])
    back = torch.from_numpy(np.argsort(order, kind="stable")).to(images.device)
    return (total + 1e-3).floor_().index_select(0, back)


def bilinear(images: Tensor, rows: Tensor, columns: Tensor, mode: str) -> Tensor:
    """Read N x H x W x C float32 `images` at fractional N x H x W places, linear, edges by `border`."""
    n, height, width, channels = images.shape
    flat = images.reshape(-1, channels)
    start = torch.arange(n, device=images.device)[:, None, None] * (height * width)
    top, left = rows.floor(), columns.floor()
    down, across = (rows - top)[..., None], (columns - left)[..., None]
    ys = [border(top.long() + d, height, mode) * width + start for d in (0, 1)]
    xs = [border(left.long() + d, width, mode) for d in (0, 1)]

    def line(y: Tensor) -> Tensor:
        first, second = (flat.index_select(0, (y + x).reshape(-1)).reshape(images.shape) for x in xs)
        return first + (second - first) * across

    upper, lower = line(ys[0]), line(ys[1])
    return upper + (lower - upper) * down
