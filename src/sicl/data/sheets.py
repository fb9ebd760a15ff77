"""Sheets: many small images as one lossless picture, and their labels as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sicl.data.files import written
from sicl.data.images import Uint8Images
from sicl.errors import DataError, InputError, is_integer, reason
from sicl.pictures import read_rgb

WEBP_MAX_SIDE = 16383


def write_sheet(path: Path, images: Uint8Images, *, columns: int = 100, method: int = 6) -> None:
    """Write N x H x W x 3 uint8 images as one lossless WebP or PNG, `columns` images a row.

    The last row is filled up with black images. The file appears under its name only when it is complete.
    """
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3:
        raise InputError(f"`images` must be uint8 N x H x W x 3, got {images.dtype} {images.shape}.")
    count, height, width, _ = images.shape
    rows = -(-count // columns)
    if path.suffix == ".webp" and max(rows * height, columns * width) > WEBP_MAX_SIDE:
        raise InputError(
            f"a WebP sheet has at most {WEBP_MAX_SIDE} pixels a side, got {columns * width} x {rows * height}; "
            "choose another number of columns or write PNG."
        )
    grid = np.zeros((rows * columns, height, width, 3), np.uint8)
    grid[:count] = images
    sheet = grid.reshape(rows, columns, height, width, 3).swapaxes(1, 2).reshape(rows * height, -1, 3)
    options: dict[str, object] = {"lossless": True, "quality": 100, "method": method}
    with written(path) as file:
        Image.fromarray(sheet).save(
            file, format=path.suffix[1:].upper(), **(options if path.suffix == ".webp" else {})
        )


def read_sheet(source: Path | IO[bytes], *, size: int = 32, count: int | None = None) -> Uint8Images:
    """Read a sheet of square images, `size` pixels a side, row by row; `count` drops the filling."""
    sheet = read_picture(source)
    height, width, _ = sheet.shape
    if height % size or width % size:
        raise DataError(f"`{source}` is {width} x {height} pixels, no grid of {size}-pixel images.")
    rows, columns = height // size, width // size
    if count is not None and count > rows * columns:
        raise DataError(f"`{source}` holds {rows * columns} images but {count} labels name them.")
    images = sheet.reshape(rows, size, columns, size, 3).swapaxes(1, 2).reshape(-1, size, size, 3)
    return np.ascontiguousarray(images[:count])


def read_row_sheet(path: Path, *, size: int = 32) -> Uint8Images:
    """Read a sheet with one image a row: N rows of size*size pixels."""
    sheet = read_picture(path)
    if sheet.shape[1] != size * size:
        raise DataError(f"`{path}` has rows of {sheet.shape[1]} pixels instead of {size * size}.")
    return sheet.reshape(-1, size, size, 3)


def read_picture(source: Path | IO[bytes]) -> Uint8Images:
    """Decode one picture as H x W x 3; a damaged one is named."""
    return np.asarray(read_rgb(source), np.uint8)


def read_labels(path: Path, key: str | None = None) -> NDArray[np.int64]:
    """Read integer labels from JSON: a list, or the list under `key`."""
    content = read_json(path)
    if key is not None and isinstance(content, dict):
        content = content.get(key)
    if not isinstance(content, list) or not all(map(is_integer, content)):
        raise DataError(f"`{path}` holds no list of integer labels{f' under {key!r}' if key else ''}.")
    return np.array(content, np.int64)


def read_json(path: Path) -> object:
    """Read a JSON file; a damaged one is named."""
    try:
        content: object = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"`{path}` is missing.") from None
    except (ValueError, RecursionError, OSError) as error:
        raise DataError(f"`{path}` is no valid JSON ({reason(error)}); replace it.") from error
    return content


def class_names(content: object) -> tuple[str, ...] | None:
    """Return the "classes" of a labels file, if it has them."""
    names = content.get("classes") if isinstance(content, dict) else None
    return tuple(map(str, names)) if isinstance(names, Sequence) and not isinstance(names, str) else None
