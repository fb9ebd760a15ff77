"""The one place where images are checked: every batch, calibrated or not, enters through an adapter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sicl.errors import InputError, SiclError, is_integer, reason, shown
from sicl.models.preprocess import channels_remedy, preprocess_of

LIMIT = 1e3
"""Images are meant to lie in [0, 1]; a value beyond this would drown the statistics of its batch."""

SLACK = 0.5
"""How far interpolation and noise may leave [0, 1] before a wrong scale is likelier."""

ONE_VALUE = "more than 1 value per channel"
"""What torch says of batch statistics that it cannot compute."""
_OF_SHAPES = re.compile(r"channel|size|shape|dimension|match", re.IGNORECASE)


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


def other_size(network: nn.Module, images: Tensor) -> str | None:
    """Return what to do about images of another size than the model's, or None if they have it."""
    preprocess = preprocess_of(network)
    # Some networks enlarge small images themselves.
    if preprocess is None or getattr(network, "enlarge", False):
        return None
    if tuple(images.shape[-2:]) == (preprocess.size, preprocess.size):
        return None
    return (
        f"`images` are {images.shape[-2]} x {images.shape[-1]} pixels, the model was made for {preprocess.size} x "
        f"{preprocess.size}: resize them with `model.preprocess`, or set it to None if another size is meant."
    )


@contextmanager
def refusals_in_words(network: nn.Module, images: Tensor) -> Iterator[None]:
    """Say in one sentence why a network cannot take a batch: its size, its channels, or too few images."""
    try:
        yield
    except (SiclError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError, AssertionError) as error:
        if ONE_VALUE in str(error):
            raise InputError(
                f"`images` is a batch of {len(images)}, of which a batch norm of this network sees one value a "
                "channel (some methods learn from a part of the batch) and cannot compute statistics; give at least "
                "two images a batch, or use `Source()`."
            ) from error
        if not _OF_SHAPES.search(str(error)) or _takes(network, images):
            raise
        shape = " x ".join(map(str, images.shape[1:]))
        raise InputError(
            f"The model does not take images of {shape} ({reason(error)}); {_remedy(network, images)}."
        ) from error


@torch.no_grad()
def _takes(network: nn.Module, images: Tensor) -> bool:
    try:
        network(images)
    except Exception:
        return False
    return True


def _remedy(network: nn.Module, images: Tensor) -> str:
    preprocess = preprocess_of(network)
    if preprocess is not None and images.shape[-1] != preprocess.size:
        return f"make them {preprocess.size} x {preprocess.size} with `model.preprocess`"
    if images.shape[1] != 3:
        return channels_remedy(tuple(images.shape), 3)
    return "give it images of the size and channels that it was trained on"
