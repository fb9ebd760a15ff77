"""Weather: snow, frost and fog."""

from __future__ import annotations

import torch
from torch import Tensor

from sicl.corruptions._constants import Constants
from sicl.corruptions._filters import centre_zoom, motion, to_uint8
from sicl.corruptions._frost import Textures, procedural_textures
from sicl.corruptions._random import Draws


def snow(images: Tensor, constants: Constants, draws: Draws) -> Tensor:
    """Whiten the image and lay two layers of streaked flakes over it, the second turned half round."""
    mean, deviation, zoom, threshold, radius, sigma, weight = constants
    height, width = images.shape[1:3]
    layer = centre_zoom(draws.normal(height, width, 1).mul_(deviation).add_(mean), zoom)
    layer = layer.masked_fill_(layer < threshold, 0).clamp_(0, 1).mul_(255).floor_()
    layer = motion(layer, radius, sigma, draws.angles(-135, -45))
    pixels = images.float()
    red, green, blue = pixels.unbind(3)
    grey = (red * 0.299 + green * 0.587 + blue * 0.114)[..., None]
    white = torch.maximum(pixels, grey * 1.5 + 127.5)
    return to_uint8(pixels * weight + white * (1 - weight) + layer + layer.flip(1, 2))


def fog(images: Tensor, constants: Constants, draws: Draws) -> Tensor:
    """Add a plasma fractal and scale back to the image's own maximum."""
    amount, decay = constants
    height, width = images.shape[1:3]
    side = 1 << (max(height, width) - 1).bit_length()
    plasma = _plasma(side, decay, draws)[:, :height, :width, None]
    peak = images.amax(dim=(1, 2, 3), keepdim=True).float()
    foggy = images.float() + plasma * (255 * amount)
    return to_uint8(foggy * (peak / (peak + 255 * amount)))


def _plasma(side: int, decay: float, draws: Draws) -> Tensor:
    """Return N x side x side float32 in [0, 1]: the diamond-square fractal on a torus."""
    grid = torch.zeros(len(draws), side, side, device=draws.device)
    step, spread = side, 100.0
    while step >= 2:
        half = step // 2
        # the deviation is spread squared: the reference multiplies a draw from (-spread, spread) by it
        noise = draws.uniform(3, side // step, side // step).mul_(2).sub_(1).mul_(spread * spread)
        corners = grid[:, ::step, ::step]
        pairs = corners + corners.roll(-1, 1)
        grid[:, half::step, half::step] = (pairs + pairs.roll(-1, 2)) / 4 + noise[:, 0]
        centres = grid[:, half::step, half::step]
        across = (centres + centres.roll(1, 1)) + (corners + corners.roll(-1, 2))
        down = (centres + centres.roll(1, 2)) + (corners + corners.roll(-1, 1))
        grid[:, ::step, half::step] = across / 4 + noise[:, 1]
        grid[:, half::step, ::step] = down / 4 + noise[:, 2]
        step, spread = half, spread / decay
    grid -= grid.amin(dim=(1, 2), keepdim=True)
    return grid / grid.amax(dim=(1, 2), keepdim=True)


def frost(images: Tensor, constants: Constants, draws: Draws, textures: Textures | None = None) -> Tensor:
    """Mix the image with a random crop of a random frost texture."""
    weight, frost_weight, stride = constants[0], constants[1], int(constants[2])
    layers = textures or procedural_textures(stride)
    crop = layers.crops(draws, images.shape[1], images.shape[2])
    return to_uint8(images.float() * weight + crop.float() * frost_weight)
