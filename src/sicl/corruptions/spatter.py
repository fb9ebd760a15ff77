"""Spatter: drops of water (severities 1 to 3) or mud (4 and 5)."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from sicl.corruptions._constants import Constants
from sicl.corruptions._filters import divide, pad, smooth, to_uint8
from sicl.corruptions._random import ImageDraws

_WATER = (175.0, 238.0, 238.0)
_MUD = (63.0, 42.0, 20.0)
_RELIEF = ((-2, -1, 0), (-1, 1, 1), (0, 1, 2))
_FARTHEST = 20.0
_WEAK_EDGE, _STRONG_EDGE = 50, 150
# the 5 x 5 chamfer distance: straight, diagonal and knight's steps
_STEPS = (
    *((dy, dx, 1.0) for dy, dx in ((0, 1), (1, 0), (0, -1), (-1, 0))),
    *((dy, dx, 1.4) for dy in (-1, 1) for dx in (-1, 1)),
    *((dy, dx, 2.1969) for dy in (-2, 2) for dx in (-1, 1)),
    *((dy, dx, 2.1969) for dy in (-1, 1) for dx in (-2, 2)),
)


def spatter(images: Tensor, constants: Constants, draws: ImageDraws) -> Tensor:
    """Lay drops of water or mud over the image where a smooth random field is high."""
    mean, deviation, sigma, threshold, strength, mud = constants
    height, width = images.shape[1:3]
    liquid = smooth(draws.normal(height, width, 1), sigma).float() * deviation + mean
    if mud:
        cover = smooth((liquid > threshold).float(), strength).float()
        cover = cover.masked_fill(cover < 0.8, 0)
        colour = torch.tensor(_MUD, device=images.device)
        return to_uint8(images.float() * (1 - cover) + colour * cover)
    drops = (liquid.masked_fill(liquid < threshold, 0).clamp(0, 1) * 255).floor()[..., 0]
    light = drops * _relief(_capped_distance(_edges(drops)))
    peak = light.amax(dim=(1, 2), keepdim=True)
    light = light / peak.clamp(min=1) * strength
    return to_uint8(images.float() + light[..., None] * torch.tensor(_WATER, device=images.device))


def _shifted(planes: Tensor, mode: str, reach: int = 1) -> dict[tuple[int, int], Tensor]:
    """Return views of N x H x W `planes` moved by each (dy, dx) within `reach`."""
    height, width = planes.shape[1:]
    padded = pad(planes[..., None], (reach, reach), (reach, reach), mode)[..., 0]
    steps = range(-reach, reach + 1)
    return {
        (dy, dx): padded[:, reach + dy : reach + dy + height, reach + dx : reach + dx + width]
        for dy in steps
        for dx in steps
    }


def _edges(planes: Tensor) -> Tensor:
    """Return the edges of N x H x W grey levels as booleans: Canny's detector, 3 x 3 Sobel, L1 norm."""
    near = _shifted(planes, "nearest")
    right = near[-1, 1] + near[0, 1] * 2 + near[1, 1]
    left = near[-1, -1] + near[0, -1] * 2 + near[1, -1]
    lower = near[1, -1] + near[1, 0] * 2 + near[1, 1]
    upper = near[-1, -1] + near[-1, 0] * 2 + near[-1, 1]
    gx, gy = right - left, lower - upper
    size = gx.abs() + gy.abs()
    around = _shifted(size, "nearest")
    steep = gy.abs() > gx.abs() * 2.414213562
    flat = gy.abs() < gx.abs() * 0.4142135624
    rising = gx * gy >= 0
    one = torch.where(rising, around[-1, -1], around[-1, 1])
    other = torch.where(rising, around[1, 1], around[1, -1])
    one = torch.where(flat, around[0, -1], torch.where(steep, around[-1, 0], one))
    other = torch.where(flat, around[0, 1], torch.where(steep, around[1, 0], other))
    straight = flat | steep
    ridge = (size > one) & torch.where(straight, size >= other, size > other)
    weak = ridge & (size > _WEAK_EDGE)
    return _connected(weak & (size > _STRONG_EDGE), weak)


def _connected(seeds: Tensor, allowed: Tensor) -> Tensor:
    """Return the pixels of `allowed` that a chain of neighbours joins to `seeds`."""
    grown, n_before = seeds, -1
    while (n_now := int(grown.sum())) != n_before:
        n_before = n_now
        neighbours = torch.stack(list(_shifted(grown, "nearest").values())).any(dim=0)
        grown = neighbours & allowed
    return grown


def _capped_distance(edges: Tensor) -> Tensor:
    """Return each pixel's chamfer distance to the nearest edge, at most 20."""
    distance = torch.where(edges, 0.0, _FARTHEST)
    for _ in range(int(_FARTHEST)):
        near = _shifted(distance, "nearest", 2)
        shorter = distance
        for dy, dx, length in _STEPS:
            shorter = torch.minimum(shorter, near[dy, dx] + length)
        if torch.equal(shorter, distance):
            break
        distance = shorter
    return distance


def _relief(distance: Tensor) -> Tensor:
    """Return the light and shade of drops: box filter, equalised histogram, emboss, box filter."""
    near = _shifted(_equalised(_box(distance).floor()), "mirror")
    embossed = torch.zeros_like(distance)
    for dy in (-1, 0, 1):
        for dx in (-1, 0, 1):
            embossed = embossed + near[dy, dx] * _RELIEF[dy + 1][dx + 1]
    return (_box(embossed.clamp(0, 255)) + 0.5).floor()


def _box(planes: Tensor) -> Tensor:
    return divide(functools.reduce(torch.add, _shifted(planes, "mirror").values()), 9)


def _equalised(planes: Tensor) -> Tensor:
    """Return N x H x W grey levels spread evenly over 0 .. 255; constant planes stay as they are."""
    n = len(planes)
    levels = planes.reshape(n, -1).long()
    counts = torch.zeros(n, 256, dtype=torch.int64, device=planes.device)
    counts.scatter_add_(1, levels, torch.ones_like(levels))
    lowest = counts.gather(1, levels.amin(dim=1, keepdim=True))
    room = levels.shape[1] - lowest
    ranks = (counts.cumsum(1) - lowest).clamp(min=0).double() * 255 / room.clamp(min=1)
    spread = (ranks + 0.5).floor().gather(1, levels).float()
    return torch.where(room > 0, spread, levels.float()).reshape(planes.shape)
