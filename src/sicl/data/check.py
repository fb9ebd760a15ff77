"""Say what is there and whether it is sound: every finding names a file and is one sentence."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sicl.data.cifar import CIFARS, layout_of, load_cifar
from sicl.data.corrupted import ArrayFolder, made_severities, read_c_labels
from sicl.data.dataset import Dataset, check_labels
from sicl.data.files import KNOWN, candidates, data_root
from sicl.data.images import Absent, Files
from sicl.data.load import DATASETS, find_arrays, load_dataset
from sicl.errors import DataError, SiclError, require_choice

CHECKED = tuple(name for name in DATASETS if name not in ("noise", "folder:PATH"))
_SAMPLE = 200


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        dataset: its name.
        what: the file or part.
        ok: whether it is sound.
        message: what is there, or what is wrong and what to do.
    """

    dataset: str
    what: str
    ok: bool
    message: str


def check_dataset(
    name: str, root: str | os.PathLike[str] | None = None, *, deep: bool = False
) -> list[Finding]:
    """Check one data set under `root`; an empty list means that nothing of it is there.

    Args:
        name: one of `CHECKED`, or "folder:PATH".
        root: the data root.
        deep: also decode every image file (ImageNet, folders).
    """
    if name.startswith("folder:"):
        return list(_check_folder(name, deep))
    require_choice(CHECKED, dataset=name)
    folder = data_root(root)
    if locate(name, folder) is None:
        return []
    if name.endswith("-c") and name != "imagenet-c":
        return list(_check_arrays(name, folder))
    return list(_check_loadable(name, folder, deep))


def locate(name: str, root: Path) -> Path | None:
    """Return where a data set lies, without reading it."""
    if name == "demo":
        return Path("(in the package)")
    if name in CIFARS:
        kind = CIFARS[name]
        return next((f for f in candidates(root, name) if layout_of(kind, f) is not None), None)
    if name in ("cifar10-c", "cifar100-c"):
        return find_arrays(name.removesuffix("-c"), root)
    return next((f for f in candidates(root, name) if any(f.glob(KNOWN[name]["sign"]))), None)


def _check_loadable(name: str, root: Path, deep: bool) -> Iterator[Finding]:
    splits = ("test", "val") if name in ("demo", "imagenet") else ("test", "val", "train")
    for split in splits[:1] if name == "imagenet-c" else splits:
        try:
            dataset = load_dataset(name, root, split)
            _check_counts(dataset, split)
            _decode_all(dataset, deep)
        except DataError as error:
            absent = split != "test" and ("not found" in str(error) or "not there" in str(error))
            if not absent:
                yield Finding(name, split, False, str(error))
            continue
        layout = dataset.provenance.get("layout", "files")
        yield Finding(
            name, split, True, f"{len(dataset):,} images of {dataset.n_classes} classes ({layout})."
        )


def _check_folder(name: str, deep: bool) -> Iterator[Finding]:
    """Count what a user's folder holds."""
    try:
        dataset = load_dataset(name)
        _decode_all(dataset, deep)
    except DataError as error:
        yield Finding(name, "pictures", False, str(error))
        return
    counts: list[int] = np.bincount(dataset.labels).tolist() if dataset.labelled else []
    listed = ", ".join(f"{c} {n:,}" for c, n in list(zip(dataset.classes or (), counts))[:12])
    more = ", ..." if dataset.n_classes > 12 else ""
    what = f"of {dataset.n_classes} classes ({listed}{more})" if dataset.labelled else "without class folders"
    yield Finding(name, "pictures", True, f"{len(dataset):,} images {what}.")


def _check_counts(dataset: Dataset, split: str) -> None:
    published = {"test": 10_000, "val": 5_000, "train": 45_000}
    if dataset.name in CIFARS and len(dataset) != published[split]:
        raise DataError(
            f"`{dataset.provenance['path']}` has {len(dataset):,} images in its {split} part; {dataset.name} has "
            f"{published[split]:,}: a file is missing or cut short."
        )
    counts = np.bincount(dataset.labels, minlength=dataset.n_classes)
    if (counts == 0).any():
        raise DataError(
            f"`{dataset.provenance.get('path', dataset.name)}` has no image of class {int(np.argmin(counts))} in its "
            f"{split} part; files are missing or mislabelled."
        )


def _decode_all(dataset: Dataset, deep: bool) -> None:
    if deep and isinstance(dataset.images, Files):
        for start in range(0, len(dataset), 256):
            dataset.images[np.arange(start, min(start + 256, len(dataset)), dtype=np.int64)]


def _check_arrays(name: str, root: Path) -> Iterator[Finding]:
    clean_name = name.removesuffix("-c")
    folder = find_arrays(clean_name, root)
    if folder is None:
        return
    try:
        labels = read_c_labels(folder)
        check_labels(labels, CIFARS[clean_name].n_classes, str(folder / "labels.npy"))
        clean = _clean(clean_name, root)
        if clean is not None and not np.array_equal(clean.labels, labels):
            raise DataError(
                f"`{folder / 'labels.npy'}` is mislabelled: it differs from the labels of {clean_name}."
            )
    except SiclError as error:
        yield Finding(name, "labels.npy", False, str(error))
        return
    yield Finding(name, "labels.npy", True, f"{len(labels):,} labels for each severity.")
    source = ArrayFolder(folder, len(labels), severities=made_severities(folder))
    seen: dict[int, str] = {}
    for corruption in source.corruptions():
        yield _check_array(name, source, corruption, clean, seen)


def _check_array(
    name: str, source: ArrayFolder, corruption: str, clean: Dataset | None, seen: dict[int, str]
) -> Finding:
    what = f"{corruption}.npy"
    path = source.folder / what
    positions = np.arange(min(_SAMPLE, source.per_severity), dtype=np.int64)
    try:
        for severity in source.severities:
            sample = source.read(corruption, severity, positions)
            if not sample.any():
                raise DataError(
                    f"`{path}` is empty at severity {severity}: it was not written to the end; replace it."
                )
            twin = seen.setdefault(zlib.crc32(sample.tobytes()), f"{what} at severity {severity}")
            if twin != f"{what} at severity {severity}":
                raise DataError(
                    f"`{path}` is mislabelled: at severity {severity} it has the images of {twin}."
                )
        if clean is not None and not isinstance(clean.images, Absent):
            _check_likeness(
                path, clean.images[positions], source.read(corruption, source.severities[0], positions)
            )
    except SiclError as error:
        return Finding(name, what, False, str(error))
    return Finding(name, what, True, f"severities {', '.join(map(str, source.severities))}.")


def _check_likeness(path: Path, clean: NDArray[np.uint8], corrupted: NDArray[np.uint8]) -> None:
    """A corrupted image resembles its clean one more than its neighbour: else the order or the images are others."""
    flat = [_standardised(images) for images in (clean, corrupted, np.roll(corrupted, 1, axis=0))]
    own, other = ((flat[0] * flat[i]).mean(axis=1) for i in (1, 2))
    if float((own > other).mean()) < 0.75:
        raise DataError(
            f"`{path}` does not show the clean images in their order; it belongs to other data, replace it."
        )


def _standardised(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    flat = images.reshape(len(images), -1).astype(np.float32)
    flat -= flat.mean(axis=1, keepdims=True)
    standardised: NDArray[np.float32] = flat / (flat.std(axis=1, keepdims=True) + 1e-6)
    return standardised


def _clean(name: str, root: Path) -> Dataset | None:
    try:
        return load_cifar(name, root, "test")
    except DataError:
        return None
