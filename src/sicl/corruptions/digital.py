"""Digital corruptions: brightness, contrast, saturation, elastic, pixelate and JPEG."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from sicl.corruptions._constants import Constants
from sicl.corruptions._filters import bilinear, box_resize, divide, smooth, to_uint8
from sicl.corruptions._random import ImageDraws

_Bytes = npt.NDArray[np.uint8]

_SMALL_SIDE = 64


def brightness(images: Tensor, constants: Constants, draws: ImageDraws) -> Tensor:
    """Raise the HSV value by `constants[0]`: hue and saturation stay, so colours scale together."""
    pixels = images.float()
    value = pixels.amax(dim=3, keepdim=True)
    raised = (value + 255 * constants[0]).clamp_(max=255)
    scaled = pixels * raised / value.clamp(min=1)
    return to_uint8(torch.where(value > 0, scaled, raised))


def saturate(images: Tensor, constants: Constants, draws: ImageDraws) -> Tensor:
    """Multiply the HSV saturation by `constants[0]` and add `constants[1]`."""
    pixels = images.float()
    value = pixels.amax(dim=3, keepdim=True)
    distance = value - pixels
    largest = distance.amax(dim=3, keepdim=True)
    saturation = largest / value.clamp(min=1)
    target = (saturation * constants[0] + constants[1]).clamp_(0, 1)
    # a grey pixel has hue 0, red: its green and blue go down, as in every HSV conversion
    red = torch.tensor([0.0, 1.0, 1.0], device=images.device)
    share = torch.where(largest > 0, distance / largest.clamp(min=1), red)
    return to_uint8(value - value * target * share + 1e-3)


def contrast(images: Tensor, constants: Constants, draws: ImageDraws) -> Tensor:
    """Shrink the distance to each channel's mean by the factor `constants[0]`."""
    n_pixels = images.shape[1] * images.shape[2]
    means = divide(images.sum(dim=(1, 2), keepdim=True, dtype=torch.int64).double(), n_pixels)
    return to_uint8((images.double() - means).mul_(constants[0]).add_(means))


def pixelate(images: Tensor, constants: Constants, draws: ImageDraws) -> Tensor:
    """Shrink by the factor `constants[0]` with a box filter and enlarge again."""
    height, width = images.shape[1:3]
    small = box_resize(images, int(height * constants[0]), int(width * constants[0]))
    return to_uint8(box_resize(small, height, width))


def jpeg_compression(images: Tensor, constants: Constants, draws: ImageDraws) -> Tensor:
    """Write and read as JPEG of quality `constants[0]`, on the CPU."""
    quality = int(constants[0])
    # coding a small image is mostly interpreter work, which threads only get in the way of
    n_workers = min(torch.get_num_threads(), 8) if max(images.shape[1:3]) > _SMALL_SIDE else 1
    with ThreadPoolExecutor(max_workers=n_workers) as pool:
        run = pool.map if n_workers > 1 else map
        coded = list(run(partial(_through_jpeg, quality=quality), images.cpu().numpy()))
    return torch.from_numpy(np.stack(coded)).to(images.device)


def _through_jpeg(image: _Bytes, quality: int) -> _Bytes:
    file = BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.array(Image.open(file))


def elastic_transform(images: Tensor, constants: Constants, draws: ImageDraws) -> Tensor:
    """Warp by a random affine map, then by a smooth random displacement."""
    reach, sigma, affine_reach = constants
    height, width = images.shape[1:3]
    rows = torch.arange(height, dtype=torch.float64, device=images.device)[:, None]
    columns = torch.arange(width, dtype=torch.float64, device=images.device)[None]
    x, y = _affine_places(rows, columns, affine_reach, draws)
    # the reference's warp reads at thirty-seconds of a pixel
    x, y = ((place * 32 + 0.5).floor() / 32 for place in (x, y))
    warped = bilinear(images.float(), y.float(), x.float(), "mirror")
    noise = draws.uniform(height, width, 2).mul_(4096).floor_().sub_(2047.5).mul_(2.0**-11)
    shift = (smooth(noise, sigma, truncate=3.0, mode="reflect") * reach).float()
    place_rows, place_columns = rows.float() + shift[..., 0], columns.float() + shift[..., 1]
    return to_uint8(bilinear(warped, place_rows, place_columns, "reflect"))


def _affine_places(rows: Tensor, columns: Tensor, reach: float, draws: ImageDraws) -> tuple[Tensor, Tensor]:
    """Where each output pixel reads when three corners of a centred square move by up to `reach`."""
    height, width = rows.numel(), columns.numel()
    half = min(height, width) // 3
    middle = torch.tensor([width // 2, height // 2], dtype=torch.float64, device=rows.device)
    signs = torch.tensor([[1, 1], [1, -1], [-1, -1]], dtype=torch.float64, device=rows.device)
    moves = (draws.uniform(3, 2).double() * 2 - 1) * reach
    corners = middle + half * signs + moves
    along_y = divide(corners[:, 0] - corners[:, 1], 2 * half)
    along_x = divide(corners[:, 1] - corners[:, 2], 2 * half)
    origin = corners[:, 2] - along_x * (middle[0] - half) - along_y * (middle[1] - half)
    (a, c), (b, d) = (along_x.unbind(1), along_y.unbind(1))
    scale = (a * d - b * c)[:, None, None]
    dx = columns - origin[:, 0, None, None]
    dy = rows - origin[:, 1, None, None]
    x = (d[:, None, None] * dx - b[:, None, None] * dy) / scale
    y = (a[:, None, None] * dy - c[:, None, None] * dx) / scale
    return x, y
