"""Array-like stores of uint8 images that are read by position and never held as floats."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sicl.errors import DataError
from sicl.pictures import MOST_PIXELS, read_rgb

if TYPE_CHECKING:
    from sicl.models.preprocess import Preprocess

Uint8Images: TypeAlias = NDArray[np.uint8]
"""uint8, N x H x W x 3."""
Positions: TypeAlias = NDArray[np.int64]
"""int64, positions along the first axis."""

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")


class Images(Protocol):
    """What a data set needs of its images: a shape and reading many positions at once."""

    @property
    def shape(self) -> tuple[int, ...]:
        """N, H, W, 3."""
        ...

    def __getitem__(self, positions: Positions, /) -> Uint8Images:
        """Read the images at `positions`, in that order."""
        ...


@dataclass(frozen=True)
class Subset:
    """Some positions of another store, without copying it."""

    base: Images
    positions: Positions

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.positions), *self.base.shape[1:])

    def __getitem__(self, positions: Positions) -> Uint8Images:
        """Read through to the base."""
        return self.base[self.positions[positions]]


@dataclass(frozen=True)
class Absent:
    """Images that are not there; reading them says where to get them."""

    shape: tuple[int, ...]
    reason: str

    def __getitem__(self, positions: Positions) -> Uint8Images:
        """Raise the reason."""
        raise DataError(self.reason)


@dataclass(frozen=True)
class Resized:
    """Another store's images at `size` pixels a side, resized when read."""

    base: Images
    size: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.base.shape[0], self.size, self.size, 3)

    def __getitem__(self, positions: Positions) -> Uint8Images:
        """Read and resize (bilinear)."""
        images = self.base[positions]
        if images.shape[1:3] == (self.size, self.size):
            return images
        resized = np.empty((len(images), self.size, self.size, 3), np.uint8)
        for target, image in zip(resized, images):
            small = Image.fromarray(image).resize((self.size, self.size), Image.Resampling.BILINEAR)
            target[...] = np.asarray(small)
        return resized


@dataclass(frozen=True)
class Noise:
    """Uniform noise, image by image from (seed, position): endless, and the same in any order."""

    count: int
    size: int
    seed: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.count, self.size, self.size, 3)

    def __getitem__(self, positions: Positions) -> Uint8Images:
        """Draw the images at `positions`."""
        images = np.empty((len(positions), self.size, self.size, 3), np.uint8)
        for image, position in zip(images, positions):
            generator = np.random.Generator(np.random.Philox(key=[self.seed, int(position)]))
            image[...] = generator.integers(0, 256, image.shape, np.uint8)
        return images


@dataclass(frozen=True)
class Files:
    """Image files, decoded when read; larger ones are resized and cropped to the centre.

    The shorter side becomes `resize` pixels (bilinear), then the central `size` x `size` is kept: the usual
    ImageNet protocol with 256 and 224. A file that already is `size` x `size` is taken as it is. A model's
    `preprocess` replaces all that by what the model states.
    """

    paths: Sequence[Path]
    size: int
    resize: int
    preprocess: Preprocess | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.paths), self.size, self.size, 3)

    def __getitem__(self, positions: Positions) -> Uint8Images:
        """Decode the files at `positions` in parallel threads."""
        paths = [self.paths[position] for position in positions]
        images = np.empty((len(paths), self.size, self.size, 3), np.uint8)
        with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            decoded = map(self._read, paths) if len(paths) < 16 else pool.map(self._read, paths)
            for image, pixels in zip(images, decoded):
                image[...] = pixels
        return images

    def _read(self, path: Path) -> Uint8Images:
        image = read_rgb(path)
        if self.preprocess is not None:
            return self.preprocess.pixels(image)
        return np.asarray(centre_crop(image, self.size, self.resize), np.uint8)


def centre_crop(image: Image.Image, size: int, resize: int) -> Image.Image:
    """Scale the shorter side to `resize` and keep the central `size` x `size` pixels."""
    width, height = image.size
    if (width, height) == (size, size):
        return image
    scale = resize / min(width, height)
    width, height = max(resize, round(width * scale)), max(resize, round(height * scale))
    if width * height > MOST_PIXELS:
        raise DataError(
            f"a picture of {image.width} x {image.height} pixels is too long to be resized to {resize}."
        )
    left, top = (width - size) // 2, (height - size) // 2
    scaled = image.resize((width, height), Image.Resampling.BILINEAR)
    return scaled.crop((left, top, left + size, top + size))


def prepared(images: Images, preprocess: Preprocess) -> Images:
    """Return image files resized and cropped as a model states; other stores have their size already."""
    if isinstance(images, Subset):
        return Subset(prepared(images.base, preprocess), images.positions)
    if isinstance(images, Files):
        return Files(images.paths, preprocess.size, preprocess.resize or preprocess.size, preprocess)
    return images


def image_files(folder: Path) -> list[Path]:
    """Return the image files directly in `folder`, sorted by name."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
