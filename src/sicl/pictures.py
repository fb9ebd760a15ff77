"""Read picture files of strangers: four formats, a limit on pixels, and damage named in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from PIL import Image

from sicl.errors import DataError, reason

MOST_PIXELS = 80_000_000
"""The most pixels of one picture: a few kilobytes can unpack to gigabytes."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
"""Formats by content, whatever the suffix: Pillow's other readers (some of which run programs) stay shut."""


def read_rgb(source: Path | IO[bytes]) -> Image.Image:
    """Decode one picture.

    Raises:
        DataError: it is missing, damaged, of another format or larger than `MOST_PIXELS`.
    """
    return _opened(source, decode=True)


def picture_size(source: Path | IO[bytes]) -> tuple[int, int]:
    """Return width and height without decoding; raises as `read_rgb`."""
    return _opened(source, decode=False).size


def _opened(source: Path | IO[bytes], *, decode: bool) -> Image.Image:
    try:
        with Image.open(source, formats=FORMATS) as picture:
            if picture.width * picture.height <= MOST_PIXELS:
                found: Image.Image = picture.convert("RGB") if decode else picture
                return found
            fault = f"it has {picture.width} x {picture.height} pixels, at most {MOST_PIXELS:,} are read"
    except FileNotFoundError:
        raise DataError(f"`{source}` is missing.") from None
    except Exception as error:  # a decoder given damaged bytes raises whatever it meets
        fault = reason(error)
    raise DataError(f"`{source}` is damaged, truncated or no picture ({fault}); replace it.")
