"""Keep made corruptions as bytes, in memory or on disk, so that five methods make them once.

On disk an array's name ends in a checksum of its pixels, which is verified before they are used.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sicl.data.dataset import Dataset
from sicl.data.files import sync_folder
from sicl.data.images import Positions, Uint8Images
from sicl.data.npy import map_npy, write_npy
from sicl.errors import DataError, require_positive

Make = Callable[[], Iterable[Uint8Images]]
"""Makes an array's images, chunk by chunk."""


@dataclass
class ImageCache:
    """Corrupted images of whole domains, as uint8 arrays bounded in bytes.

    Args:
        folder: where arrays are kept for later runs, mapped when used; None keeps them in memory.
        max_bytes: the most the cache holds; the least recently used arrays go first. A stream that is larger by
            itself does not use the cache: it is made chunk by chunk in every run.
    """

    folder: Path | None = None
    max_bytes: int = 4 * 2**30
    _memory: OrderedDict[str, Uint8Images] = field(default_factory=OrderedDict, repr=False)
    _mapped: dict[str, Uint8Images] = field(default_factory=dict, repr=False)
    _checksums: dict[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        require_positive(max_bytes=self.max_bytes)

    def get(self, key: str, shape: tuple[int, ...], make: Make) -> Uint8Images:
        """Return the array under `key`, making it from chunks if it is new."""
        return self._from_disk(key, shape, make) if self.folder else self._from_memory(key, shape, make)

    def checksum(self, key: str) -> str | None:
        """Return the checksum of the pixels under `key`, once they have been used."""
        return self._checksums.get(key)

    def _from_memory(self, key: str, shape: tuple[int, ...], make: Make) -> Uint8Images:
        array = self._memory.pop(key, None)
        if array is None:
            array = np.empty(shape, np.uint8)
            for start, rows in _numbered(make()):
                array[start : start + len(rows)] = rows
            self._checksums[key] = _checksum(array)
        self._memory[key] = array
        while sum(kept.nbytes for kept in self._memory.values()) > self.max_bytes:
            self._memory.popitem(last=False)
        return array

    def _from_disk(self, key: str, shape: tuple[int, ...], make: Make) -> Uint8Images:
        assert self.folder is not None
        if key in self._mapped:
            return self._mapped[key]
        for path in sorted(self.folder.glob(f"{glob.escape(key)}.????????????????.npy")):
            # Zeroed blocks and flipped bits have the right length; images that are not what was made are made again.
            with contextlib.suppress(DataError):
                return self._map(key, shape, path)
            path.unlink(missing_ok=True)
        path = self._write(key, shape, make)
        self._evict(keep=path)
        return self._map(key, shape, path)

    def _map(self, key: str, shape: tuple[int, ...], path: Path) -> Uint8Images:
        array = map_npy(path).view(np.uint8)
        found = _checksum(array)
        if array.shape != shape or path.name != f"{key}.{found}.npy":
            raise DataError(f"`{path}` does not hold the images it was written with; remove it.")
        with contextlib.suppress(OSError):
            os.utime(path)
        self._checksums[key] = found
        self._mapped[key] = array
        return array

    def _write(self, key: str, shape: tuple[int, ...], make: Make) -> Path:
        assert self.folder is not None
        self.folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256()

        def pieces() -> Iterator[tuple[int, Uint8Images]]:
            for start, rows in _numbered(make()):
                digest.update(np.ascontiguousarray(rows).data)
                yield start, rows

        aside = self.folder / f"{key}.{os.getpid()}-{threading.get_ident()}.new"
        try:
            write_npy(aside, shape, pieces())
            path = self.folder / f"{key}.{digest.hexdigest()[:16]}.npy"
            aside.replace(path)
            sync_folder(self.folder)
        finally:
            aside.unlink(missing_ok=True)
        return path

    def _evict(self, keep: Path) -> None:
        assert self.folder is not None
        # Files may vanish under another process's eviction; what is gone needs no room.
        found = []
        for path in self.folder.glob("*.npy"):
            with contextlib.suppress(FileNotFoundError):
                found.append((path.stat().st_mtime, path.stat().st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total > self.max_bytes and path != keep:
                total -= size
                path.unlink(missing_ok=True)


def as_cache(cache: ImageCache | str | os.PathLike[str] | None) -> ImageCache | None:
    """Return a cache for a folder; a cache or None is returned as it is."""
    if cache is None or isinstance(cache, ImageCache):
        return cache
    return ImageCache(Path(cache).expanduser())


def domain_key(dataset: Dataset, corruption: str, severity: int, seed: int, positions: Positions) -> str:
    """Name one domain's array: equal exactly when the images would be."""
    digest = hashlib.sha256(f"{dataset.fingerprint} {corruption} {severity} {seed} {_code()}".encode())
    digest.update(positions.tobytes())
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", dataset.name)[:60]
    return f"{word}-{corruption}-{severity}-{digest.hexdigest()[:20]}"


def _code() -> str:
    """Hash the corruptions' source, so that a change to it never meets old images."""
    import sicl.corruptions as corruptions

    digest = hashlib.sha256()
    for folder in corruptions.__path__:
        for path in sorted(Path(folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _checksum(array: Uint8Images) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()[:16]


def _numbered(chunks: Iterable[Uint8Images]) -> Iterator[tuple[int, Uint8Images]]:
    start = 0
    for chunk in chunks:
        yield start, chunk
        start += len(chunk)
