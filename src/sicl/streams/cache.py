"""Keep made corruptions as bytes, in memory or on disk, so that five methods make them once."""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from sicl.data.dataset import Dataset
from sicl.data.images import Positions, Uint8Images
from sicl.data.npy import map_npy
from sicl.errors import DataError, require_positive


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

    def __post_init__(self) -> None:
        require_positive(max_bytes=self.max_bytes)

    def get(self, key: str, shape: tuple[int, ...], make: Callable[[], Iterable[Uint8Images]]) -> Uint8Images:
        """Return the array under `key`, making it from chunks if it is new."""
        return self._from_disk(key, shape, make) if self.folder else self._from_memory(key, shape, make)

    def _from_memory(
        self, key: str, shape: tuple[int, ...], make: Callable[[], Iterable[Uint8Images]]
    ) -> Uint8Images:
        array = self._memory.pop(key, None)
        if array is None:
            array = np.empty(shape, np.uint8)
            _fill(array, make())
        self._memory[key] = array
        while sum(kept.nbytes for kept in self._memory.values()) > self.max_bytes:
            self._memory.popitem(last=False)
        return array

    def _from_disk(
        self, key: str, shape: tuple[int, ...], make: Callable[[], Iterable[Uint8Images]]
    ) -> Uint8Images:
        assert self.folder is not None
        path = self.folder / f"{key}.npy"
        if path.is_file():
            os.utime(path)
        else:
            self.folder.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(f".{os.getpid()}.part")
            try:
                array = np.lib.format.open_memmap(part, "w+", np.uint8, shape)
                _fill(array, make())
                array.flush()
                del array
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
            self._evict(keep=path)
        try:
            return map_npy(path).view(np.uint8)
        except DataError:
            path.unlink(missing_ok=True)
            return self._from_disk(key, shape, make)

    def _evict(self, keep: Path) -> None:
        assert self.folder is not None
        found = sorted(self.folder.glob("*.npy"), key=lambda path: path.stat().st_mtime)
        total = sum(path.stat().st_size for path in found)
        for path in found:
            if total <= self.max_bytes or path == keep:
                continue
            total -= path.stat().st_size
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
    return f"{dataset.name.replace(':', '-').replace('/', '-')}-{corruption}-{severity}-{digest.hexdigest()[:20]}"


def _code() -> str:
    """Hash the corruptions' source, so that a change to it never meets old images."""
    import sicl.corruptions as corruptions

    digest = hashlib.sha256()
    for folder in corruptions.__path__:
        for path in sorted(Path(folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _fill(array: Uint8Images, chunks: Iterable[Uint8Images]) -> None:
    start = 0
    for chunk in chunks:
        array[start : start + len(chunk)] = chunk
        start += len(chunk)
