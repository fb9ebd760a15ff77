"""MNIST and SVHN, the digit sets that streams take out-of-distribution samples from, in their own formats."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sicl.data.dataset import Dataset, arrays_dataset
from sicl.data.files import MOST_BYTES, candidates, require_size
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


DIGITS = tuple("0123456789")
_IDX_KINDS = {"images": (2051, 3), "labels": (2049, 1)}


def load_mnist(root: Path, split: str) -> Dataset:
    """Load MNIST from its IDX files (plain or gzipped) as 28-pixel grey images in three channels."""
    stem = "t10k" if split == "test" else "train"
    name = f"{stem}-images-idx3-ubyte"
    images_path = _find(candidates(root, "mnist"), (name, f"{name}.gz"), "mnist", root)
    labels_name = f"{stem}-labels-idx1-ubyte"
    folder = images_path.parent
    labels_path = _find([folder], (labels_name, f"{labels_name}.gz"), "mnist", folder)
    grey, labels = read_idx(images_path, "images"), read_idx(labels_path, "labels").astype(np.int64)
    images = np.repeat(grey[..., None], 3, axis=-1)
    return arrays_dataset("mnist", images, labels, DIGITS, split, path=str(folder))


def load_svhn(root: Path, split: str) -> Dataset:
    """Load SVHN's cropped digits from `test_32x32.mat` or `train_32x32.mat`."""
    name = "test_32x32.mat" if split == "test" else "train_32x32.mat"
    path = _find(candidates(root, "svhn"), (name,), "svhn", root)
    content = read_mat(path)
    images, labels = content.get("X"), content.get("y")
    sound = (
        images is not None
        and images.ndim == 4
        and images.shape[:3] == (32, 32, 3)
        and images.dtype == np.uint8
    )
    if images is None or labels is None or not sound or not np.isfinite(labels).all():
        raise DataError(
            f"`{path}` is damaged or no SVHN file: it lacks the arrays X (32 x 32 x 3 x N uint8) and y; get it again."
        )
    digits = labels.reshape(-1).astype(np.int64) % 10
    pixels = np.ascontiguousarray(np.moveaxis(images, 3, 0)).view(np.uint8)
    return arrays_dataset("svhn", pixels, digits, DIGITS, split, path=str(path.parent))


def read_idx(path: Path, kind: str) -> NDArray[np.uint8]:
    """Read an IDX file of unsigned bytes, plain or gzipped; a damaged one is named."""
    magic, dimensions = _IDX_KINDS[kind]
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = struct.unpack(f">{1 + dimensions}I", file.read(4 * (1 + dimensions)))
            if header[0] != magic:
                raise DataError(
                    f"`{path}` is no IDX file of {kind}: its magic number is {header[0]}, not {magic}."
                )
            promised = math.prod(header[1:])
            require_size(path, promised)
            # One byte more than promised: it also makes gzip compare its checksum at the end.
            values = np.frombuffer(file.read(promised + 1), np.uint8)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise DataError(f"`{path}` is truncated or damaged ({reason(error)}); get it again.") from error
    if len(values) != promised:
        fault = "truncated" if len(values) < promised else "longer than it should be"
        raise DataError(f"`{path}` is {fault}: it promises {header[1:]} values and has {len(values):,}.")
    return values.reshape(header[1:])


def _find(folders: Iterable[Path], names: tuple[str, ...], dataset: str, root: Path) -> Path:
    for folder in folders:
        for name in names:
            if (folder / name).is_file():
                return folder / name
    raise DataError(
        f"`{names[0]}` was not found under `{root}`; get it with `sicl data get {dataset} --data {root}`."
    )
