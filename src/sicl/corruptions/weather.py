"""Weather: snow, frost (textures made by code, or photographs read from a folder) and fog."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sicl.corruptions._constants import Constants
from sicl.corruptions._filters import centre_zoom, motion, to_uint8
from sicl.corruptions._random import ImageDraws
from sicl.errors import DataError, require_path
from sicl.pictures import read_rgb

_SIDE = 960
_CELLS = (3, 12, 24, 60, 240)
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True)
class Textures:
    """Frost pictures of any size, stored as one list of pixels.

    Args:
        pixels: uint8, P x 3; all pixels of all pictures, row by row.
        shapes: height and width of each picture, in the same order.
    """

    pixels: Tensor
    shapes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, pictures: list[Tensor]) -> Textures:
        """Return the textures of H x W x 3 uint8 `pictures`."""
        shapes = tuple((int(p.shape[0]), int(p.shape[1])) for p in pictures)
        return cls(torch.cat([p.reshape(-1, 3) for p in pictures]), shapes)

    def strided(self, stride: int) -> Textures:
        """Return every `stride`-th pixel, which is what bilinear shrinking by an odd factor reads."""
        if stride == 1:
            return self
        parts = torch.split(self.pixels, [height * width for height, width in self.shapes])
        pictures = [part.reshape(*shape, 3) for part, shape in zip(parts, self.shapes)]
        return Textures.of([picture[stride // 2 :: stride, stride // 2 :: stride] for picture in pictures])

    def crops(self, draws: ImageDraws, height: int, width: int) -> Tensor:
        """Return N x height x width x 3 uint8: a random crop of a random picture for each image."""
        if any(h <= height or w <= width for h, w in self.shapes):
            raise DataError(
                f"Frost pictures must be larger than {height} x {width} pixels after shrinking, "
                f"got {min(self.shapes)}; use larger pictures or leave `frost_folder` out."
            )
        device = draws.device
        sizes = torch.tensor(self.shapes, dtype=torch.int64, device=device)
        starts = (sizes[:, 0] * sizes[:, 1]).cumsum(0) - sizes[:, 0] * sizes[:, 1]
        which = draws.integers(0, len(self.shapes), 1)[:, 0]
        room = sizes[which] - torch.tensor([height, width], device=device)
        corner = (draws.uniform(2).double() * room).floor().long()
        rows = corner[:, :1] + torch.arange(height, device=device)
        columns = corner[:, 1:] + torch.arange(width, device=device)
        lines = starts[which][:, None] + rows * sizes[which][:, 1:]
        places = lines[:, :, None] + columns[:, None, :]
        return self.pixels.to(device).index_select(0, places.reshape(-1)).reshape(*places.shape, 3)


@dataclass(frozen=True)
class _Recipe:
    """How one texture looks: mean colour, variance in each octave of `_CELLS`, skew, extra red."""

    colour: tuple[float, float, float]
    variances: tuple[float, ...]
    skew: float = 0.0
    red: float = 1.0


# chosen so that first and second moments, by distance, agree with those of frost photographs
_RECIPES = (
    _Recipe((143, 158, 170), (500, 60, 20, 60, 150), -0.05),
    _Recipe((76, 148, 165), (90, 15, 20, 40, 130), 0.1, 1.6),
    _Recipe((205, 209, 218), (110, 30, 15, 10, 60), -0.2),
    _Recipe((188, 193, 202), (260, 60, 30, 20, 80), -0.2),
    _Recipe((100, 112, 124), (720, 180, 80, 50, 120), 0.15),
)


@functools.lru_cache(maxsize=4)
def procedural_textures(stride: int = 1) -> Textures:
    """Return five generated textures: grey, teal, two pale and one dark; the same ones on every machine."""
    if stride > 1:
        return procedural_textures().strided(stride)
    draws = ImageDraws(0, "frost textures", np.arange(len(_RECIPES)), torch.device("cpu"))
    octaves = [_value_noise(draws, cell) for cell in _CELLS]
    return Textures.of(
        [_texture(recipe, [octave[i] for octave in octaves]) for i, recipe in enumerate(_RECIPES)]
    )


def _value_noise(draws: ImageDraws, cell: int) -> Tensor:
    """Return N x side x side float32 of unit variance: random grid values, joined linearly, periodic."""
    grid = draws.normal(_SIDE // cell, _SIDE // cell)
    share = torch.arange(cell, dtype=torch.float32) / cell
    for axis in (1, 2):
        step = (grid.roll(-1, axis) - grid).unsqueeze(axis + 1)
        shape = [cell if d == axis + 1 else 1 for d in range(4)]
        grid = (grid.unsqueeze(axis + 1) + step * share.reshape(shape)).flatten(axis, axis + 1)
    # the mean of (1 - t)^2 + t^2 over the cell, on both axes
    spread = float(((1 - share) ** 2 + share**2).mean())
    return grid / spread


def _texture(recipe: _Recipe, octaves: list[Tensor]) -> Tensor:
    total = torch.zeros(_SIDE, _SIDE)
    for variance, octave in zip(recipe.variances, octaves):
        total = total + octave * variance**0.5
    deviation = sum(recipe.variances) ** 0.5
    unit = total / deviation
    total = (unit + (unit * unit - 1) * recipe.skew) * deviation
    colours = [total * recipe.red, total, total]
    layers = [(colour + mean).clamp(0, 255).floor() for colour, mean in zip(colours, recipe.colour)]
    return torch.stack(layers, dim=2).to(torch.uint8)


def read_textures(folder: str | Path, stride: int = 1) -> Textures:
    """Return the textures of the picture files in `folder`, in the order of their names.

    Raises:
        DataError: `folder` is missing or holds no picture.
    """
    require_path(frost_folder=folder)
    files = sorted(p for p in Path(folder).glob("*") if p.suffix.lower() in _SUFFIXES)
    if not files:
        raise DataError(
            f"`frost_folder` must hold {', '.join(_SUFFIXES)} files, found none in {folder}; "
            "leave it out to use the generated textures."
        )
    pictures = [torch.from_numpy(np.array(read_rgb(file))) for file in files]
    return Textures.of(pictures).strided(stride)


def snow(images: Tensor, constants: Constants, draws: ImageDraws) -> Tensor:
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


def fog(images: Tensor, constants: Constants, draws: ImageDraws) -> Tensor:
    """Add a plasma fractal and scale back to the image's own maximum."""
    amount, decay = constants
    height, width = images.shape[1:3]
    side = 1 << (max(height, width) - 1).bit_length()
    plasma = _plasma(side, decay, draws)[:, :height, :width, None]
    peak = images.amax(dim=(1, 2, 3), keepdim=True).float()
    foggy = images.float() + plasma * (255 * amount)
    return to_uint8(foggy * (peak / (peak + 255 * amount)))


def _plasma(side: int, decay: float, draws: ImageDraws) -> Tensor:
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


def frost(
    images: Tensor, constants: Constants, draws: ImageDraws, textures: Textures | None = None
) -> Tensor:
    """Mix the image with a random crop of a random frost texture."""
    weight, frost_weight, stride = constants[0], constants[1], int(constants[2])
    layers = textures or procedural_textures(stride)
    crop = layers.crops(draws, images.shape[1], images.shape[2])
    return to_uint8(images.float() * weight + crop.float() * frost_weight)
