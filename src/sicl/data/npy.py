"""Map `.npy` files and name the damaged ones; write them piece by piece, whole or not at all."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from sicl.data.files import require_size, written
from sicl.errors import DataError, reason


def map_npy(path: Path) -> NDArray[np.generic]:
    """Map an array from disk without reading it.

    Raises:
        DataError: the file is missing, truncated, too long or no `.npy` file.
    """
    try:
        with path.open("rb") as file:
            shape, fortran, dtype = _header(file, str(path), path.stat().st_size)
            begin = file.tell()
    except FileNotFoundError:
        raise DataError(f"`{path}` is missing.") from None
    except OSError as error:
        raise DataError(f"`{path}` cannot be read ({error.strerror}).") from error
    order: Literal["F", "C"] = "F" if fortran else "C"
    if 0 in shape:  # nothing to map
        return np.empty(shape, dtype, order)
    return np.memmap(path, dtype, "r", begin, shape, order)


def read_npz(path: Path, names: Sequence[str]) -> NDArray[np.generic] | None:
    """Return the first array of an .npz file that has one of `names`, None if it has none of them.

    Raises:
        DataError: the file is missing, damaged, holds Python objects or unpacks to too much.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            there = set(archive.namelist())
            name = next((f"{name}.npy" for name in names if f"{name}.npy" in there), None)
            if name is None:
                return None
            require_size(path, archive.getinfo(name).file_size)
            with archive.open(name) as file:
                raw = io.BytesIO(file.read())
    except FileNotFoundError:
        raise DataError(f"`{path}` is missing.") from None
    except Exception as error:  # zipfile given damaged bytes raises whatever it meets
        raise DataError(f"`{path}` is damaged or truncated ({reason(error)}); replace it.") from error
    shape, fortran, dtype = _header(raw, f"{path}:{name}", raw.getbuffer().nbytes)
    return np.frombuffer(raw.read(), dtype).reshape(shape, order="F" if fortran else "C")


def _header(file: IO[bytes], where: str, found: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read an array's shape, order and type, and compare them with the bytes that are there."""
    try:
        version = np.lib.format.read_magic(file)
        old = version == (1, 0)
        read = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if min(shape, default=0) < 0:
            raise ValueError(f"its shape is {shape}")
    except Exception as error:  # the header is Python source: a damaged one fails in many ways
        raise DataError(
            f"`{where}` is no .npy file or its header is damaged ({reason(error)}); replace it."
        ) from error
    if dtype.hasobject or dtype.kind not in "biufc":
        raise DataError(
            f"`{where}` holds Python objects or text ({dtype}) instead of numbers; it is not read."
        )
    promised = file.tell() + math.prod(shape) * dtype.itemsize
    if found != promised:
        fault = "truncated" if found < promised else "longer than it should be"
        raise DataError(
            f"`{where}` is {fault}: its header promises {promised:,} bytes, it has {found:,}; replace it."
        )
    return shape, fortran, dtype


def write_npy(path: Path, shape: tuple[int, ...], pieces: Iterable[tuple[int, NDArray[np.uint8]]]) -> None:
    """Write a uint8 array from (first row, rows) pieces; rows that no piece covers stay zero and take no space.

    The file is written aside and renamed. Plain writes, not a writable map: a full disk is an error, not a crash.
    """
    row = int(np.prod(shape[1:], dtype=np.int64))
    with written(path) as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        begin = file.tell()
        for start, rows in pieces:
            file.seek(begin + start * row)
            file.write(np.ascontiguousarray(rows, np.uint8).data)
        file.truncate(begin + shape[0] * row)
