"""Map `.npy` files and name the damaged ones; write them piece by piece, whole or not at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sicl.errors import DataError


def map_npy(path: Path) -> NDArray[np.generic]:
    """Map an array from disk without reading it.

    Raises:
        DataError: the file is missing, truncated, too long or no `.npy` file.
    """
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read = (
                np.lib.format.read_array_header_1_0
                if version == (1, 0)
                else np.lib.format.read_array_header_2_0
            )
            shape, _, dtype = read(file)
            promised = file.tell() + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    except FileNotFoundError:
        raise DataError(f"`{path}` is missing.") from None
    except (ValueError, EOFError, OSError) as error:
        raise DataError(
            f"`{path}` is no .npy file or its header is damaged ({error}); replace it."
        ) from error
    if dtype.hasobject:
        raise DataError(f"`{path}` holds Python objects instead of numbers; it is not read.")
    found = path.stat().st_size
    if found != promised:
        fault = "truncated" if found < promised else "longer than it should be"
        raise DataError(
            f"`{path}` is {fault}: its header promises {promised:,} bytes, it has {found:,}; replace it."
        )
    array: NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def write_npy(path: Path, shape: tuple[int, ...], pieces: Iterable[tuple[int, NDArray[np.uint8]]]) -> None:
    """Write a uint8 array from (first row, rows) pieces; rows that no piece covers stay zero and take no space.

    The file is written aside and renamed. Plain writes, not a writable map: a full disk is an error, not a crash.
    """
    part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.part")
    row = int(np.prod(shape[1:], dtype=np.int64))
    try:
        with part.open("wb") as file:
            header = {"descr": "|u1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            begin = file.tell()
            for start, rows in pieces:
                file.seek(begin + start * row)
                file.write(np.ascontiguousarray(rows, np.uint8).data)
            file.truncate(begin + shape[0] * row)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Bring a folder's names to the disk: a renamed file is safe only with its folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders.
        return
    try:
        os.fsync(descriptor)
    except OSError:  # Some network file systems cannot; then the rename has to do.
        pass
    finally:
        os.close(descriptor)
