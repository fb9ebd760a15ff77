"""Blurs: defocus, glass, motion, zoom and Gaussian."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sicl.corruptions._constants import Constants
from sicl.corruptions._filters import centre_zoom, defocus, divide, motion, smooth, to_uint8
from sicl.corruptions._random import ImageDraws


def gaussian_blur(images: Tensor, constants: Constants, draws: ImageDraws) -> Tensor:
    """Smooth with a Gaussian of `constants[0]` pixels."""
    return to_uint8(smooth(images, constants[0]))


def defocus_blur(images: Tensor, constants: Constants, draws: ImageDraws) -> Tensor:
    """Average over a disk of radius `constants[0]`, itself smoothed by `constants[1]`."""
    radius, alias_sigma = constants
    # the weights sum to 1 but for rounding: the small offset keeps whole grey levels from falling below
    return to_uint8(defocus(images, radius, alias_sigma) + 1e-3)


def motion_blur(images: Tensor, constants: Constants, draws: ImageDraws) -> Tensor:
    """Smear along a random direction within 45 degrees of horizontal."""
    radius, sigma = constants
    return to_uint8(motion(images, radius, sigma, draws.angles(-45, 45)))


def zoom_blur(images: Tensor, constants: Constants, draws: ImageDraws) -> Tensor:
    """Average the image with its own enlargements about the centre."""
    largest, step = constants
    factors = np.arange(1, largest, step)
    clean = images.float()
    total = clean.clone()
    for factor in factors:
        total += centre_zoom(clean, float(factor))
    return to_uint8(divide(total, len(factors) + 1) + 1e-3)


def glass_blur(images: Tensor, constants: Constants, draws: ImageDraws) -> Tensor:
    """Smooth, displace each pixel locally `rounds` times, smooth again."""
    sigma, reach, rounds = constants[0], int(constants[1]), int(constants[2])
    n, height, width, channels = images.shape
    pixels = to_uint8(smooth(images, sigma)).reshape(n, -1, channels)
    for _ in range(rounds):
        source = _displaced(height, width, reach, draws)
        start = torch.arange(n, device=images.device)[:, None] * (height * width)
        pixels = (
            pixels.reshape(-1, channels).index_select(0, (source + start).reshape(-1)).reshape(pixels.shape)
        )
    return to_uint8(smooth(pixels.reshape(images.shape), sigma))


def _displaced(height: int, width: int, reach: int, draws: ImageDraws) -> Tensor:
    """Return N x H W: the pixel each pixel gets its colour from in one round of the reference's loop.

    The reference visits pixels from the last to the first and means to swap each with a random
    neighbour; through array views the "swap" only copies the neighbour. So a pixel's colour is its
    neighbour's *new* colour if that was visited before, else its old one: a forest of pointers, which
    pointer doubling resolves for all pixels at once.
    """
    rows = torch.arange(reach + 1, height - reach + 1)
    columns = torch.arange(reach + 1, width - reach + 1)
    shift = draws.integers(-reach, reach, 2, len(rows), len(columns))
    device = shift.device
    rows, columns = rows.to(device)[:, None], columns.to(device)[None]
    new_rows, new_columns = rows + shift[:, 0], columns + shift[:, 1]
    here, there = rows * width + columns, new_rows * width + new_columns
    visited = (new_rows > reach) & (new_rows <= height - reach) & (new_columns > reach)
    visited &= (new_columns <= width - reach) & (there > here)
    n_pixels = height * width
    # a target below n_pixels still points at a new colour, one above it names an old colour: the end
    target = torch.arange(n_pixels, device=device).add_(n_pixels).repeat(len(draws), 1)
    target[:, here.reshape(-1)] = torch.where(visited, there, there + n_pixels).flatten(1)
    while bool((open_ := target < n_pixels).any()):
        target = torch.where(open_, target.gather(1, target.clamp(max=n_pixels - 1)), target)
    return target - n_pixels
