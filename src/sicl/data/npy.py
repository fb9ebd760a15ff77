"""Map `.npy` files, and name the damaged ones."""

from __future__ import annotations

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
    found = path.stat().st_size
    if found != promised:
        fault = "truncated" if found < promised else "longer than it should be"
        raise DataError(
            f"`{path}` is {fault}: its header promises {promised:,} bytes, it has {found:,}; replace it."
        )
    if dtype.hasobject:
        raise DataError(f"`{path}` holds Python objects instead of numbers; it is not read.")
    array: NDArray[np.generic] = np.load(path, mmap_mode="r", allow_pickle=False)
    return array
