"""The one place where images are checked: every batch, calibrated or not, enters through an adapter."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sicl.errors import InputError, is_integer, shown

LIMIT = 1e3
"""Images are meant to lie in [0, 1]; a value beyond this would drown the statistics of its batch."""

SLACK = 0.5
"""How far interpolation and noise may leave [0, 1] before a wrong scale is likelier."""


def check_images(images: Any) -> tuple[float, float]:
    """Return the smallest and the largest value of a non-empty N x C x H x W batch of floats.

    Raises:
        InputError: it is something else, has NaN or infinite values, or values beyond 1000.
    """
    if not isinstance(images, Tensor):
        raise InputError(f"`images` must be a torch.Tensor, got {type(images).__name__}.")
    if images.ndim != 4:
        raise InputError(
            f"`images` must be N x C x H x W, got shape {tuple(images.shape)}; add the missing batch or "
            "channel dimension with `unsqueeze`."
        )
    if not images.is_floating_point():
        raise InputError(f"`images` must be floats in [0, 1], got {images.dtype}; divide uint8 by 255.")
    if images.shape[0] == 0:
        raise InputError("`images` is an empty batch; skip it.")
    if images.numel() == 0:
        raise InputError(f"`images` has no pixels, got shape {tuple(images.shape)}; skip it.")
    # One reduction, through which NaN passes, and one look at the device.
    low, high = torch.stack(torch.aminmax(images.detach())).tolist()
    if not (abs(low) < float("inf") and abs(high) < float("inf")):
        raise InputError("`images` contain NaN or infinite values; drop those samples first.")
    if max(-low, high) > LIMIT:
        raise InputError(
            f"`images` must lie in [0, 1], got values from {low:.3g} to {high:.3g}; divide them by their "
            "largest possible value, or drop the damaged samples."
        )
    return low, high


def random_images(shape: Any) -> Tensor:
    """Return images of a shape, the same each time.

    Raises:
        InputError: no batch can have this shape.
    """
    sizes = list(shape) if isinstance(shape, list | tuple) else []
    if len(sizes) != 4 or not all(is_integer(size) and size > 0 for size in sizes):
        raise InputError(
            f"`shape` must be that of a batch, N x C x H x W, as (64, 3, 32, 32), got {shown(shape)}."
        )
    return torch.rand(sizes, generator=torch.Generator().manual_seed(0))


def likely_mistake(low: float, high: float) -> str | None:
    """Return what probably went wrong with images of this range, or None if they may well be in [0, 1]."""
    if low >= -SLACK and high <= 1 + SLACK:
        return None
    said = f"images should lie in [0, 1], these go from {low:.3g} to {high:.3g}: "
    if low < -SLACK:
        return (
            said + "were they normalised already? Leave that to the model (`mean` and `std` in `load_model`)."
        )
    return said + "are they 0-255? Divide them by 255."
