"""How much a packed file may unpack to: small files of strangers must not fill the memory."""

from __future__ import annotations

from pathlib import Path

from sicl.errors import DataError

MOST_BYTES = 2**30
"""The most bytes that one packed file may hold (SVHN's largest has a quarter of it)."""


def require_size(path: Path, n_bytes: int) -> None:
    """Raise `DataError` if what a file holds is larger than `MOST_BYTES`."""
    if n_bytes > MOST_BYTES:
        raise DataError(
            f"`{path}` unpacks to more than {MOST_BYTES:,} bytes, which no known data set does; it is not read."
        )
