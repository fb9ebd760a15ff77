"""MNIST and SVHN: the digit sets that streams take out-of-distribution samples from."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sicl.data.cifar import content_checksum
from sicl.data.dataset import Dataset, split_positions
from sicl.data.limits import require_size
from sicl.data.mat import read_mat
from sicl.data.roots import candidates
from sicl.errors import DataError, reason

DIGITS = tuple("0123456789")
_IDX_KINDS = {"images": (2051, 3), "labels": (2049, 1)}


def load_mnist(root: Path, split: str) -> Dataset:
    """Load MNIST from its IDX files (plain or gzipped) as 28-pixel grey images in three channels."""
    stem = "t10k" if split == "test" else "train"
    name = f"{stem}-images-idx3-ubyte"
    images_path = _find(root, ("mnist", "MNIST", "MNIST/raw", "data"), (name, f"{name}.gz"), "mnist")
    labels_name = f"{stem}-labels-idx1-ubyte"
    labels_path = _find(images_path.parent, (), (labels_name, f"{labels_name}.gz"), "mnist")
    grey, labels = read_idx(images_path, "images"), read_idx(labels_path, "labels").astype(np.int64)
    images = np.repeat(grey[..., None], 3, axis=-1)
    return _digits("mnist", images, labels, split, images_path)


def load_svhn(root: Path, split: str) -> Dataset:
    """Load SVHN's cropped digits from `test_32x32.mat` or `train_32x32.mat`."""
    name = "test_32x32.mat" if split == "test" else "train_32x32.mat"
    path = _find(root, ("svhn", "SVHN"), (name,), "svhn")
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
    return _digits(
        "svhn", np.ascontiguousarray(np.moveaxis(images, 3, 0)).view(np.uint8), digits, split, path
    )


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


def _digits(
    name: str, images: NDArray[np.uint8], labels: NDArray[np.int64], split: str, path: Path
) -> Dataset:
    indices = np.arange(len(labels), dtype=np.int64)
    if split != "test":
        indices = split_positions(len(labels), split)
        images, labels = images[indices], labels[indices]
    provenance = {
        "dataset": name,
        "split": split,
        "path": str(path.parent),
        "count": len(labels),
        "checksum": content_checksum(images),
    }
    return Dataset(name, images, labels, DIGITS, indices, provenance)


def _find(root: Path, folders: tuple[str, ...], names: tuple[str, ...], dataset: str) -> Path:
    for folder in candidates(root, folders):
        for name in names:
            if (folder / name).is_file():
                return folder / name
    raise DataError(
        f"`{names[0]}` was not found under `{root}`; get it with `sicl data get {dataset} --data {root}`."
    )
