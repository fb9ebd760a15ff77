"""Read numeric arrays from MATLAB 5 files: a small reader that damaged files cannot crash."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sicl.data.limits import MOST_BYTES, require_size
from sicl.errors import DataError, reason

_HEADER = 128
_COMPRESSED, _MATRIX = 15, 14
_TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_NUMERIC_CLASSES = range(6, 16)


def read_mat(path: Path) -> dict[str, NDArray[np.generic]]:
    """Return the numeric arrays of a MATLAB 5 file by name; anything else in it is passed over.

    Raises:
        DataError: the file is missing, damaged, of another version or too large.
    """
    try:
        require_size(path, path.stat().st_size)
        raw = path.read_bytes()
        order = {b"IM": "<", b"MI": ">"}[raw[126:128]]
        found = (_matrix(body, order, path) for body in _matrices(raw, order, path))
        return {name: array for name, array in found if array is not None}
    except (ValueError, KeyError, struct.error, zlib.error, OSError) as error:
        raise DataError(
            f"`{path}` is damaged or no MATLAB 5 file ({reason(error)}); get it again."
        ) from error


def _matrices(raw: bytes, order: str, path: Path) -> Iterator[bytes]:
    for kind, body in _elements(raw, order, _HEADER):
        if kind == _COMPRESSED:
            unpacked = zlib.decompressobj().decompress(body, MOST_BYTES + 1)
            require_size(path, len(unpacked))
            kind, body = next(_elements(unpacked, order, 0), (0, b""))
        if kind == _MATRIX:
            yield body


def _elements(raw: bytes, order: str, start: int) -> Iterator[tuple[int, bytes]]:
    """Give the type and the bytes of each element; small ones hold both in one tag."""
    while start + 8 <= len(raw):
        kind, size = struct.unpack_from(f"{order}II", raw, start)
        begin = start + 8
        if kind >> 16:
            kind, size, begin = kind & 0xFFFF, kind >> 16, start + 4
        if begin + size > len(raw) or (begin == start + 4 and size > 4):
            raise ValueError(f"an element of {size:,} bytes begins where {len(raw) - begin:,} are left")
        yield kind, raw[begin : begin + size]
        start = begin + size if kind == _COMPRESSED else begin + size + -(begin + size) % 8


def _matrix(body: bytes, order: str, path: Path) -> tuple[str, NDArray[np.generic] | None]:
    """Return a matrix's name and its array, None if it is not one of real numbers."""
    parts = [*_elements(body, order, 0)]
    if len(parts) < 4:
        return "", None
    (_, flags), (_, dimensions), (_, name), (kind, data) = parts[:4]
    if struct.unpack_from(f"{order}I", flags)[0] & 0xFF not in _NUMERIC_CLASSES or kind not in _TYPES:
        return "", None
    shape = tuple(int(side) for side in np.frombuffer(dimensions, f"{order}i4"))
    values = np.frombuffer(data, f"{order}{_TYPES[kind]}")
    if min(shape, default=-1) < 0 or math.prod(shape) != len(values):
        raise ValueError(f"it promises an array of {shape} and has {len(values):,} values")
    return name.decode("latin-1"), values.reshape(shape, order="F")
