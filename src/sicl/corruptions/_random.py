"""A random stream for each image, as a pure function of (seed, corruption, severity, image index)."""

from __future__ import annotations

import functools
import hashlib
import math

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import ndtri
from torch import Tensor

_U64 = npt.NDArray[np.uint64]

_WEYL = 0x9E3779B97F4A7C15
_NORMAL_BITS = 16


class ImageDraws:
    """The random numbers of a batch of images: row i depends on image i's key only.

    Bits come from an integer hash of (key, element), so a row is the same in any batch, on any device.
    Real numbers are made from them by tables and single IEEE operations, never by `log` or `cos`, whose
    last bit may differ between devices and even between positions in a batch.

    Args:
        seed: the user's seed.
        label: what the stream is for; streams with different labels are unrelated.
        indices: int64, N; the global index of each image.
        device: where the numbers are needed.
    """

    def __init__(self, seed: int, label: str, indices: npt.NDArray[np.int64], device: torch.device) -> None:
        digest = hashlib.sha256(f"{seed}/{label}".encode()).digest()
        base = np.uint64(int.from_bytes(digest[:8], "little"))
        self._keys = _splitmix64(indices.astype(np.uint64) * np.uint64(_WEYL) + base)
        self.device = device
        self._n_calls = 0

    def __len__(self) -> int:
        return len(self._keys)

    def bits(self, count: int) -> Tensor:
        """Return N x `count` int32 of 32 random bits each; every call draws new ones."""
        self._n_calls += 1
        keys = _splitmix64(self._keys ^ np.uint64(self._n_calls * _WEYL & 0xFFFFFFFFFFFFFFFF))
        halves = torch.from_numpy(keys.view(np.int32).reshape(-1, 2)).to(self.device)
        low, high = halves[:, :1], halves[:, 1:]
        words = torch.arange(count, dtype=torch.int32, device=self.device)[None] * _signed(0x9E3779B9) + low
        _xor_shift(words, 16).mul_(_signed(0x7FEB352D)).add_(high)
        _xor_shift(words, 15).mul_(_signed(0x846CA68B))
        return _xor_shift(words, 16)

    def uniform(self, *shape: int) -> Tensor:
        """Return N x `shape` float32, uniform on the centres of 2**23 equal cells of (0, 1)."""
        words = self.bits(math.prod(shape))
        cells = (words >> 9) & 0x7FFFFF
        return cells.float().add_(0.5).mul_(2.0**-23).reshape(len(self), *shape)

    def ranks(self, count: int) -> Tensor:
        """Return N x `count` int32, uniform on 0, ..., 2**16 - 1: two of each 32 bits."""
        words = self.bits((count + 1) // 2)
        return torch.cat([words & 0xFFFF, (words >> 16) & 0xFFFF], dim=1)[:, :count]

    def normal(self, *shape: int) -> Tensor:
        """Return N x `shape` float32, standard normal at 2**16 quantiles (so within 4.4 deviations)."""
        table = _normal_table().to(self.device)
        return table.index_select(0, self.ranks(math.prod(shape)).reshape(-1)).reshape(len(self), *shape)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Return N x `shape` int64, uniform on low, ..., high - 1."""
        return (self.uniform(*shape) * (high - low)).floor_().long().clamp_(max=high - low - 1).add_(low)

    def angles(self, low: float, high: float) -> npt.NDArray[np.float64]:
        """Return one angle in degrees an image, uniform between `low` and `high`."""
        share: npt.NDArray[np.float64] = self.uniform(1)[:, 0].double().cpu().numpy()
        return low + (high - low) * share


def _signed(word: int) -> int:
    return word - (1 << 32) if word >= 1 << 31 else word


def _xor_shift(words: Tensor, by: int) -> Tensor:
    # torch shifts int32 arithmetically; the mask makes the shift a logical one
    return words.bitwise_xor_((words >> by) & ((1 << (32 - by)) - 1))


def _splitmix64(words: _U64) -> _U64:
    words = words + np.uint64(_WEYL)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: _U64 = words ^ (words >> np.uint64(31))
    return mixed


@functools.lru_cache(maxsize=1)
def _normal_table() -> Tensor:
    quantiles = ndtri((np.arange(1 << _NORMAL_BITS) + 0.5) / (1 << _NORMAL_BITS))
    quantiles /= np.sqrt(np.mean(quantiles**2))
    # multiples of 2**-12 keep the float64 sums of `_filters.smooth` exact
    return torch.from_numpy(np.round(quantiles * 4096) / 4096).float()
