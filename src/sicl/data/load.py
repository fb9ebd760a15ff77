"""Load a data set by name."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sicl.data.cifar import CIFARS, load_cifar
from sicl.data.corrupted import ArrayFolder, made_severities, read_c_labels
from sicl.data.dataset import Dataset, arrays_dataset, check_labels
from sicl.data.digits import load_mnist, load_svhn
from sicl.data.files import KNOWN, candidates, data_root, embedded
from sicl.data.folders import load_folder, load_imagenet, load_imagenet_c
from sicl.data.images import Absent, Images, Noise
from sicl.data.sheets import read_sheet
from sicl.errors import (
    DataError,
    OptionError,
    nearest,
    reason,
    require_choice,
    require_path,
    require_text,
    shown,
)

DATASETS: dict[str, str] = {name: told["what"] for name, told in KNOWN.items()}
"""The known names, and what they are."""

N_NOISE = 10_000
_PROBE = 1 << 16


def load_dataset(name: str, root: str | os.PathLike[str] | None = None, split: str = "test") -> Dataset:
    """Load a data set.

    Args:
        name: one of `DATASETS`; ImageNet's take a protocol after a colon: "imagenet-c:5k".
        root: the folder with the data; None means SICL_DATA or ~/.cache/sicl.
        split: "test", or of the training images "train" (i % 10 != 9) and "val" (i % 10 == 9), the source
            validation data: both disjoint from each other and from "test".

    Raises:
        OptionError: unknown name or split.
        DataError: the data are missing or damaged; the message names the file.
    """
    require_choice(("test", "train", "val"), split=split)
    require_text(name=name)
    folder = data_root(root)
    try:
        return _load(name, folder, split)
    except OSError as error:
        raise DataError(f"`{name}` cannot be read from `{folder}` ({reason(error)}).") from error


def _load(name: str, folder: Path, split: str) -> Dataset:
    base, _, option = name.partition(":")
    if option:
        require_path(name=option)
    if base == "folder" and option:
        return load_folder(Path(os.path.expanduser(option)))
    if base in ("imagenet", "imagenet-c"):
        protocol = option or "50k"
        if base == "imagenet" or split != "test":
            return load_imagenet(folder, split, protocol)
        return load_imagenet_c(folder, protocol)
    if option or name not in DATASETS:
        raise OptionError(
            f"unknown data set {shown(name)}; known: {', '.join(DATASETS)}.{nearest(name, DATASETS)}"
        )
    return _load_plain(name, folder, split)


def _load_plain(name: str, root: Path, split: str) -> Dataset:
    if name == "demo":
        return load_demo(split)
    if name == "noise":
        provenance: dict[str, object] = {"dataset": "noise", "count": N_NOISE, "checksum": "philox:0"}
        return Dataset(
            "noise", Noise(N_NOISE, 32), np.zeros(N_NOISE, np.int64), ("noise",), provenance=provenance
        )
    if name in ("mnist", "svhn"):
        return load_mnist(root, split) if name == "mnist" else load_svhn(root, split)
    if name in CIFARS:
        return load_cifar(name, root, split)
    return _load_cifar_c(name.removesuffix("-c"), root, split)


def _load_cifar_c(clean_name: str, root: Path, split: str) -> Dataset:
    """Load published or made arrays; without them, the clean test set, corrupted while streaming."""
    if split != "test":
        return load_cifar(clean_name, root, split)
    name = f"{clean_name}-c"
    folder = find_arrays(clean_name, root)
    if folder is None:
        clean = load_cifar(clean_name, root, "test")
        return replace(clean, name=name, provenance={**clean.provenance, "corrupted": "made while streaming"})
    labels = read_c_labels(folder)
    check_labels(labels, CIFARS[clean_name].n_classes, str(folder / "labels.npy"))
    source = ArrayFolder(folder, len(labels), severities=made_severities(folder))
    images, classes = _clean_or_absent(clean_name, root, labels)
    provenance = {
        "dataset": name,
        "split": "test",
        "path": str(folder),
        "count": len(labels),
        **source.describe(),
        "checksum": _stamp(folder),
    }
    return Dataset(name, images, labels, classes, provenance=provenance, corrupted=source)


def find_arrays(clean_name: str, root: Path) -> Path | None:
    """Return the folder with a -C data set's `labels.npy`, if there is one."""
    telling = ("labels.npy", "gaussian_noise.npy", "brightness.npy")
    folders = candidates(root, f"{clean_name}-c")
    return next((folder for folder in folders if any((folder / name).is_file() for name in telling)), None)


def _clean_or_absent(
    clean_name: str, root: Path, labels: NDArray[np.int64]
) -> tuple[Images, tuple[str, ...] | None]:
    try:
        clean = load_cifar(clean_name, root, "test")
    except DataError as error:
        return Absent((len(labels), 32, 32, 3), str(error)), tuple(CIFARS[clean_name].classes) or None
    if not np.array_equal(clean.labels, labels):
        raise DataError(
            f"the labels of {clean_name}-c and of {clean_name} under `{root}` differ: one of them is mislabelled or "
            "made from other images; run `sicl data check`."
        )
    return clean.images, clean.classes


def _stamp(folder: Path) -> str:
    """Name the arrays by size and by three samples of each: reading gigabytes would cost more than the stream."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.npy")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            for start in (0, size // 2, max(0, size - _PROBE)):
                file.seek(start)
                digest.update(file.read(_PROBE))
    return f"probe:{digest.hexdigest()[:16]}"


N_TEST = 1500
"""The first 1,500 images are the test part, the other 400 stand in for source validation data."""


def load_demo(split: str = "test") -> Dataset:
    """Load the first 1,900 images of the CIFAR-10 test set: 1,500 to stream ("test"), 400 to fit on ("val").

    None of them was used to train the demonstration model.
    """
    if split not in ("test", "val"):
        raise OptionError(
            f"the demo data have the splits test and val, got {split!r}; load cifar10 to train."
        )
    content = embedded("sicl.data", "_embedded/labels.json")
    labels = np.array(content["labels"], np.int64)
    with (files("sicl.data") / "_embedded" / "cifar10-test-1900.webp").open("rb") as file:
        images = read_sheet(file, count=len(labels))
    part = slice(0, N_TEST) if split == "test" else slice(N_TEST, None)
    classes = tuple(content["classes"])
    made = arrays_dataset("demo", images[part], labels[part], classes, split, whole=True, layout="embedded")
    return replace(made, indices=np.arange(len(labels), dtype=np.int64)[part])
