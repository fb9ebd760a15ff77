"""The strong augmentation of CoTTA, RoTTA and ROID on a whole batch: colour, small affine, blur, flip, noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

_GREY = (0.2989, 0.587, 0.114)


def strong_augmentation(
    images: Tensor,
    generator: torch.Generator,
    *,
    blur: bool = True,
    noise: bool = True,
    padding: Literal["border", "reflection"] = "border",
) -> Tensor:
    """Return a randomly changed copy of N x 3 x H x W images in [0, 1].

    Brightness 0.6-1.4, contrast 0.7-1.3, saturation 0.5-1.5, hue +-0.06 and gamma 0.7-1.3 in random order;
    rotation +-15 degrees, shift up to H/8, scale 0.9-1.1; Gaussian blur, sigma up to 0.5; a horizontal flip
    of every other batch; Gaussian noise of 0.005. As in the reference one draw serves the whole batch.

    Args:
        images: the batch; other than three channels get no colour change but brightness, contrast and gamma.
        generator: on the host, whatever the images' device is: no draw waits for the device.
        blur: whether to blur; ROID does not.
        noise: whether to add noise; ROID does not.
        padding: what lies outside: the nearest edge pixel, or the mirrored image (ROID).
    """
    out = images.clamp(0.0, 1.0)
    jitters: list[tuple[Callable[[Tensor, float], Tensor], float, float]] = [
        (_brightness, 0.6, 1.4),
        (_contrast, 0.7, 1.3),
        (_saturation, 0.5, 1.5),
        (_hue, -0.06, 0.06),
        (_gamma, 0.7, 1.3),
    ]
    for i in torch.randperm(len(jitters), generator=generator).tolist():
        change, low, high = jitters[i]
        out = change(out, _uniform(low, high, generator))
    out = _affine(out, generator, padding)
    if blur:
        out = _blur(out, _uniform(0.001, 0.5, generator))
    if _uniform(0.0, 1.0, generator) < 0.5:
        out = out.flip(-1)
    if noise:
        out = out + 0.005 * _noise_like(out, generator)
    return out.clamp(0.0, 1.0)


def _uniform(low: float, high: float, generator: torch.Generator) -> float:
    return low + (high - low) * float(torch.rand((), generator=generator))


def _noise_like(images: Tensor, generator: torch.Generator) -> Tensor:
    # Drawn on the device, from a seed drawn on the host: no large copy, and one random state to save.
    seed = int(torch.randint(2**31, (), generator=generator))
    local = torch.Generator(images.device).manual_seed(seed)
    return torch.randn(images.shape, generator=local, device=images.device, dtype=images.dtype)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] != 3:
        return images.mean(dim=1, keepdim=True)
    red, green, blue = images.unbind(dim=1)
    return (_GREY[0] * red + _GREY[1] * green + _GREY[2] * blue).unsqueeze(1)


def _brightness(images: Tensor, factor: float) -> Tensor:
    return (images * factor).clamp(0.0, 1.0)


def _contrast(images: Tensor, factor: float) -> Tensor:
    mean = _grey(images).mean(dim=(1, 2, 3), keepdim=True)
    return torch.lerp(mean, images, factor).clamp(0.0, 1.0)


def _saturation(images: Tensor, factor: float) -> Tensor:
    if images.shape[1] != 3:
        return images
    return torch.lerp(_grey(images), images, factor).clamp(0.0, 1.0)


def _gamma(images: Tensor, gamma: float) -> Tensor:
    return images.clamp(min=1e-8).pow(gamma)


def _hue(images: Tensor, shift: float) -> Tensor:
    """Turn the hue (in revolutions) and keep value and chroma, in the HSV hexagon."""
    if images.shape[1] != 3:
        return images
    red, green, blue = images.unbind(dim=1)
    value, which = images.max(dim=1)
    chroma = value - images.amin(dim=1)
    safe = torch.where(chroma > 0, chroma, torch.ones_like(chroma))
    sixths = torch.stack([(green - blue) / safe, 2 + (blue - red) / safe, 4 + (red - green) / safe], dim=1)
    hue = sixths.gather(1, which.unsqueeze(1)) + 6 * shift
    # Channel n of (red, green, blue) is value - chroma * clamp(min(k, 4 - k), 0, 1), k = (n + hue) mod 6.
    offset = torch.arange(5, 0, -2, dtype=images.dtype, device=images.device).view(1, 3, 1, 1)
    k = (offset + hue) % 6
    share = torch.minimum(k, 4 - k).clamp(0.0, 1.0)
    return value.unsqueeze(1) - chroma.unsqueeze(1) * share


def _affine(images: Tensor, generator: torch.Generator, padding: str) -> Tensor:
    """Rotate, shift and scale about the centre; what comes from outside is as `padding` says."""
    n, _, height, width = images.shape
    angle = math.radians(_uniform(-15.0, 15.0, generator))
    scale = _uniform(0.9, 1.1, generator)
    # In the units of the sampling grid (half an image is 1), so an eighth of the image is 0.25.
    across, down = _uniform(-0.25, 0.25, generator), _uniform(-0.25, 0.25, generator)
    cos, sin = math.cos(angle) / scale, math.sin(angle) / scale
    aspect = height / width
    rows = [
        [cos, sin * aspect, -cos * across - sin * aspect * down],
        [-sin / aspect, cos, sin / aspect * across - cos * down],
    ]
    matrix = torch.tensor([rows], dtype=images.dtype).to(images.device, non_blocking=True).expand(n, 2, 3)
    grid = F.affine_grid(matrix, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode=padding, align_corners=False)


def _blur(images: Tensor, sigma: float) -> Tensor:
    if min(images.shape[2:]) < 3:  # Too small to reflect at the border.
        return images
    positions = torch.arange(-2, 3, dtype=images.dtype, device=images.device)
    kernel = torch.softmax(-0.5 * (positions / sigma).square(), dim=0)
    channels = images.shape[1]
    padded = F.pad(images, (2, 2, 2, 2), mode="reflect")
    across = F.conv2d(padded, kernel.view(1, 1, 1, 5).expand(channels, 1, 1, 5), groups=channels)
    return F.conv2d(across, kernel.view(1, 1, 5, 1).expand(channels, 1, 5, 1), groups=channels)
