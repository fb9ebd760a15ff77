"""Augmentation of whole batches on their own device: no per-sample Python, no waiting for the device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sicl.train.spec import TrainSpec


def pad_images(images: Tensor, padding: int) -> Tensor:
    """Return uint8 N x H x W x 3 images with a black border."""
    return F.pad(images, (0, 0, padding, padding, padding, padding))


def crop_and_flip(
    padded: Tensor, index: Tensor, *, size: tuple[int, int], flip: bool, generator: torch.Generator
) -> Tensor:
    """Return random crops of the images at `index`, half of them mirrored, as uint8 N x H x W x 3.

    Order, crop and mirror are one gather from the padded data set.
    """
    n, device = len(index), padded.device
    height, width = size
    top = _integers(n, padded.shape[1] - height, generator, device)
    left = _integers(n, padded.shape[2] - width, generator, device)
    rows = top[:, None] + torch.arange(height, device=device)
    columns = torch.arange(width, device=device).expand(n, width)
    if flip:
        mirrored = torch.rand(n, 1, generator=generator, device=device) < 0.5
        columns = torch.where(mirrored, width - 1 - columns, columns)
    columns = left[:, None] + columns
    return padded[index[:, None, None], rows[:, :, None], columns[:, None, :]]


def _integers(n: int, high: int, generator: torch.Generator, device: torch.device) -> Tensor:
    return torch.randint(0, high + 1, (n,), generator=generator, device=device)


def to_float(images: Tensor, *, channels_last: bool) -> Tensor:
    """Return uint8 N x H x W x 3 images as float32 N x 3 x H x W in [0, 1]."""
    layout = torch.channels_last if channels_last else torch.contiguous_format
    return images.permute(0, 3, 1, 2).float().div_(255.0).contiguous(memory_format=layout)


def warp(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Rotate, shear and scale each image at random: up to 30 degrees, 0.3 and 30 % at strength 1."""
    n, device = len(images), images.device
    draws = torch.rand(4, n, generator=generator, device=device) * 2 - 1
    angle = draws[0] * strength * (torch.pi / 6)
    shear = draws[1] * strength * 0.3
    scale_x, scale_y = 1 + draws[2] * strength * 0.3, 1 + draws[3] * strength * 0.3
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    first = torch.stack([cos * scale_x, -sin + shear, zero], 1)
    second = torch.stack([sin + shear, cos * scale_y, zero], 1)
    grid = F.affine_grid(torch.stack([first, second], 1), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="zeros", align_corners=False)


def jitter_colour(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Change brightness, contrast and saturation of each image by a random factor in 1 +- `strength`."""
    shape = (3, len(images), 1, 1, 1)
    factors = 1 + strength * (torch.rand(shape, generator=generator, device=images.device) * 2 - 1)
    images = images * factors[0]
    images = torch.lerp(_grey(images).expand_as(images), images, factors[1])
    middle = _grey(images).mean((2, 3), keepdim=True)
    return torch.lerp(middle.expand_as(images), images, factors[2]).clamp_(0.0, 1.0)


def _grey(images: Tensor) -> Tensor:
    return 0.299 * images[:, 0:1] + 0.587 * images[:, 1:2] + 0.114 * images[:, 2:3]


def cut_out(images: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """Blank a square of each image with grey, at a random place that may lie half outside."""
    n, height, width, device = len(images), images.shape[2], images.shape[3], images.device
    centre_y = _integers(n, height - 1, generator, device)[:, None]
    centre_x = _integers(n, width - 1, generator, device)[:, None]
    rows = (torch.arange(height, device=device) - centre_y).abs() * 2 < side
    columns = (torch.arange(width, device=device) - centre_x).abs() * 2 < side
    hole = (rows[:, :, None] & columns[:, None, :]).unsqueeze(1)
    return images.masked_fill(hole, 0.5)


@dataclass(frozen=True, slots=True)
class Mix:
    """One batch's mixing, drawn on the host so that nothing waits for the device.

    Args:
        share: how much of each sample stays its own.
        box: top, bottom, left, right of the pasted rectangle (CutMix), or None (Mixup).
    """

    share: float
    box: tuple[int, int, int, int] | None


def draw_mix(mix: float, size: tuple[int, int], rng: np.random.Generator) -> Mix | None:
    """Draw whether and how to mix a batch: CutMix (Yun et al., 2019) or Mixup (Zhang et al., 2018)."""
    if rng.random() >= mix:
        return None
    if rng.random() < 0.5:
        return Mix(share=float(rng.beta(0.8, 0.8)), box=None)
    height, width = size
    side = float(np.sqrt(rng.random()))
    centre_y, centre_x = rng.random() * height, rng.random() * width
    top, bottom = (int(np.clip(centre_y + sign * side * height / 2, 0, height)) for sign in (-1, 1))
    left, right = (int(np.clip(centre_x + sign * side * width / 2, 0, width)) for sign in (-1, 1))
    share = 1 - (bottom - top) * (right - left) / (height * width)
    return Mix(share=share, box=(top, bottom, left, right))


def apply_mix(images: Tensor, mix: Mix) -> Tensor:
    """Mix each image of the batch with the image before it (the order is random already)."""
    other = images.roll(1, 0)
    if mix.box is None:
        return torch.lerp(other, images, mix.share)
    top, bottom, left, right = mix.box
    images = images.clone()
    images[:, :, top:bottom, left:right] = other[:, :, top:bottom, left:right]
    return images


def augment(
    padded: Tensor, index: Tensor, *, size: tuple[int, int], spec: TrainSpec, generator: torch.Generator
) -> Tensor:
    """Return the images at `index`, augmented sample by sample as the spec says, as floats in [0, 1]."""
    crops = crop_and_flip(padded, index, size=size, flip=spec.flip, generator=generator)
    images = to_float(crops, channels_last=spec.channels_last)
    if spec.affine:
        images = warp(images, spec.affine, generator)
    if spec.jitter:
        images = jitter_colour(images, spec.jitter, generator)
    if spec.cutout:
        images = cut_out(images, spec.cutout, generator)
    return images
