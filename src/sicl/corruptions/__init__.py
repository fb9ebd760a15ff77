"""Common image corruptions (Hendrycks and Dietterich, 2019): seeded per image, batched, on any device."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sicl.corruptions import blur, digital, noise, spatter, weather
from sicl.corruptions._constants import (
    CATEGORIES,
    CONSTANTS,
    CORRUPTIONS,
    LARGEST_CIFAR_SIDE,
    VALIDATION_CORRUPTIONS,
    Constants,
)
from sicl.corruptions._random import ImageDraws
from sicl.errors import (
    LARGEST_INT,
    InputError,
    OptionError,
    is_integer,
    require_between,
    require_choice,
    require_integer,
    shown,
)

__all__ = ["CATEGORIES", "CORRUPTIONS", "VALIDATION_CORRUPTIONS", "corrupt"]

Images = TypeVar("Images", Tensor, npt.NDArray[Any])
_Corruption = Callable[[Tensor, Constants, ImageDraws], Tensor]

_MODULES = (noise, blur, weather, digital, spatter)
_FUNCTIONS: dict[str, _Corruption] = {
    name: next(getattr(module, name) for module in _MODULES if hasattr(module, name))
    for name in (*CORRUPTIONS, *VALIDATION_CORRUPTIONS)
}

_SMALLEST_SIDE = 8
# values of an image chunk: small enough for a CPU's cache, large enough to keep a GPU busy
_CHUNK_VALUES = {"cpu": 1 << 19}
_DEVICE_CHUNK_VALUES = 1 << 24


def corrupt(
    images: Images,
    name: str,
    *,
    severity: int = 5,
    seed: int = 0,
    first_index: int = 0,
    indices: Tensor | npt.NDArray[Any] | None = None,
    constants: str = "auto",
    frost_folder: str | Path | None = None,
) -> Images:
    """Return corrupted copies of `images`; the same type, device and shape.

    Image i's result depends on its pixels, `name`, `severity`, `seed` and its index only: not on the batch it
    came in, the number of threads, or the device.

    Args:
        images: uint8, N x H x W x 3.
        name: one of `CORRUPTIONS` or `VALIDATION_CORRUPTIONS`.
        severity: 1 to 5.
        seed: seeds the random corruptions.
        first_index: the index of the first image in its data set; the others count on from it.
        indices: int64, N; the index of each image, in place of `first_index`.
        constants: "cifar" (CIFAR-10-C), "imagenet" (ImageNet-C), or "auto": "cifar" up to 64 px.
        frost_folder: read frost photographs from here instead of generating textures.

    Raises:
        InputError: `images` or `indices` has the wrong type or shape.
        OptionError: a value is not allowed.
        DataError: `frost_folder` holds no suitable picture.
    """
    require_integer(seed=seed)
    batch = _as_tensor(images)
    function, values = _chosen(batch, name, severity, constants)
    if name == "frost" and frost_folder is not None:
        function = partial(weather.frost, textures=weather.read_textures(frost_folder, int(values[2])))
    numbers = _numbers(len(batch), first_index, indices)
    out = torch.empty_like(batch)
    n_values = _CHUNK_VALUES.get(batch.device.type, _DEVICE_CHUNK_VALUES)
    size = max(1, n_values // max(1, batch[0].numel())) if len(batch) else 1
    with torch.no_grad():
        for start in range(0, len(batch), size):
            draws = ImageDraws(seed, f"{name}/{int(severity)}", numbers[start : start + size], batch.device)
            out[start : start + size] = function(batch[start : start + size], values, draws)
    return out if isinstance(images, Tensor) else out.numpy()


def _as_tensor(images: Tensor | npt.NDArray[Any]) -> Tensor:
    if not isinstance(images, Tensor | np.ndarray):
        raise InputError(f"`images` must be a numpy array or a torch tensor, got {type(images).__name__}.")
    shape = tuple(images.shape)
    if str(images.dtype).removeprefix("torch.") != "uint8" or len(shape) != 4 or shape[3] != 3:
        raise InputError(
            f"`images` must be uint8 of shape N x H x W x 3, got {images.dtype} of shape {shape}; "
            "scale floats in [0, 1] by 255 and move the channels last."
        )
    if min(shape[1:3]) < _SMALLEST_SIDE:
        raise InputError(
            f"`images` must be at least {_SMALLEST_SIDE} pixels wide and high, got shape {shape}."
        )
    if isinstance(images, Tensor):
        if images.layout != torch.strided or images.is_meta:
            raise InputError(
                f"`images` must be a dense tensor with content, got {images.layout} on {images.device}."
            )
        return images.contiguous()
    return torch.from_numpy(np.require(images, requirements=["C", "W"]))


def _chosen(batch: Tensor, name: str, severity: int, constants: str) -> tuple[_Corruption, Constants]:
    require_choice(_FUNCTIONS, name=name)
    require_choice(("auto", *CONSTANTS), constants=constants)
    if not is_integer(severity) or not 1 <= severity <= 5:
        raise OptionError(f"`severity` must be one of 1, 2, 3, 4, 5; got {shown(severity)}.")
    if constants == "auto":
        constants = "cifar" if max(batch.shape[1:3]) <= LARGEST_CIFAR_SIDE else "imagenet"
    return _FUNCTIONS[name], CONSTANTS[constants][name][int(severity) - 1]


def _numbers(n: int, first_index: int, indices: Tensor | npt.NDArray[Any] | None) -> npt.NDArray[np.int64]:
    require_between(0, LARGEST_INT - n, first_index=first_index)
    require_integer(first_index=first_index)
    if indices is None:
        return np.arange(first_index, first_index + n, dtype=np.int64)
    try:
        numbers = np.asarray(indices.cpu() if isinstance(indices, Tensor) else indices)
    except (TypeError, ValueError, RuntimeError, NotImplementedError):
        numbers = np.empty(0)
    if numbers.shape != (n,) or numbers.dtype.kind not in "iu":
        raise InputError(
            f"`indices` must be {n} integers, one an image, got {numbers.dtype} of shape {numbers.shape}."
        )
    if first_index != 0:
        raise OptionError("`first_index` must be 0 when `indices` is given; leave one of them out.")
    return numbers.astype(np.int64)
