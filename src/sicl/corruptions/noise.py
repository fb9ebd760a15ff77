"""Noise added to each value on its own: Gaussian, shot (Poisson), impulse and speckle noise."""

from __future__ import annotations

import functools

import numpy as np
import torch
from scipy.special import pdtr
from torch import Tensor

from sicl.corruptions._constants import Constants
from sicl.corruptions._filters import to_uint8
from sicl.corruptions._random import ImageDraws

_RANKS = 1 << 16


def gaussian_noise(images: Tensor, constants: Constants, draws: ImageDraws) -> Tensor:
    """Add normal noise of standard deviation `constants[0]` (of the full range)."""
    return to_uint8(draws.normal(*images.shape[1:]).mul_(255 * constants[0]).add_(images))


def speckle_noise(images: Tensor, constants: Constants, draws: ImageDraws) -> Tensor:
    """Add normal noise whose deviation is `constants[0]` times the value itself."""
    return to_uint8(draws.normal(*images.shape[1:]).mul_(constants[0]).add_(1.0).mul_(images))


def shot_noise(images: Tensor, constants: Constants, draws: ImageDraws) -> Tensor:
    """Replace each value by a Poisson count of mean `constants[0]` times the value, scaled back."""
    table = _poisson_table(constants[0]).to(images.device)
    cells = images.reshape(len(images), -1).int() * _RANKS + draws.ranks(images[0].numel())
    return table.index_select(0, cells.reshape(-1)).reshape(images.shape)


@functools.lru_cache(maxsize=5)
def _poisson_table(rate: float) -> Tensor:
    """The noisy grey level for each of 256 grey levels and 2**16 quantiles, 16 MB."""
    counts = np.arange(int(rate + 12 * np.sqrt(rate) + 12))
    levels = np.floor(np.clip(counts / rate, 0, 1) * 255).astype(np.uint8)
    table = np.empty((256, _RANKS), dtype=np.uint8)
    for value in range(256):
        ends = np.round(pdtr(counts, value / 255 * rate) * _RANKS).astype(np.int64)
        ends[-1] = _RANKS
        table[value] = np.repeat(levels, np.diff(ends, prepend=0))
    return torch.from_numpy(table.reshape(-1))


def impulse_noise(images: Tensor, constants: Constants, draws: ImageDraws) -> Tensor:
    """Set a share `constants[0]` of the values to 0 or 255, as often one as the other."""
    chance = draws.uniform(*images.shape[1:])
    noisy = images.masked_fill(chance < constants[0] / 2, 0)
    return noisy.masked_fill_(chance > 1 - constants[0] / 2, 255)
