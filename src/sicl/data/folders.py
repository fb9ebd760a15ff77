"""Folders of image files: ImageNet with its named protocols, and any folder of pictures."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sicl.data.corrupted import ImageFolders
from sicl.data.dataset import UNLABELLED, Dataset, split_positions
from sicl.data.files import candidates
from sicl.data.images import Absent, Files, Images, Positions, image_files
from sicl.errors import DataError, OptionError
from sicl.pictures import picture_size

if TYPE_CHECKING:
    from sicl.models.preprocess import Preprocess

PROTOCOLS = ("50k", "5k", "1k")
"""The whole validation set; the first five images of each class by file name; the first one of each class."""


def load_imagenet(root: Path, split: str, protocol: str = "50k") -> Dataset:
    """Load ImageNet's validation images ("test"), or part of its training images ("train", "val").

    Args:
        root: holds `val/<class>/*` (and `train/<class>/*`), directly or under `imagenet`.
        split: "test" is the published validation set; "val" the training images i % 10 == 9 of the sorted list.
        protocol: "50k", "5k", "1k", a number of images a class as "per-class-N", or a text file with one
            `<class>/<file>` a line.
    """
    folder = _find(root, "val" if split == "test" else "train")
    files, labels, classes = _listing(folder)
    chosen = choose(files, labels, protocol) if split == "test" else split_positions(len(files), split)
    images = Files([folder / files[i] for i in chosen], 224, 256)
    provenance = _provenance("imagenet", split, protocol, folder, [files[i] for i in chosen])
    return Dataset("imagenet", images, labels[chosen], classes, chosen, provenance)


def load_imagenet_c(root: Path, protocol: str = "50k") -> Dataset:
    """Load ImageNet-C; where its folders are missing, corruptions are made from ImageNet's validation images."""
    base = next(filter(None, map(_a_severity, candidates(root, "imagenet-c"))), None)
    if base is None:
        return replace(load_imagenet(root, "test", protocol), name="imagenet-c")
    folder = base.parent.parent
    files, labels, classes = _listing(base)
    chosen = choose(files, labels, protocol)
    reason = f"the clean images of ImageNet were not found under `{root}`; put them into `{root / 'imagenet' / 'val'}`."
    images: Images = Absent((len(chosen), 224, 224, 3), reason)
    source = ImageFolders(folder, tuple(files))
    provenance = _provenance("imagenet-c", "test", protocol, folder, [files[i] for i in chosen])
    provenance.update(source.describe())
    return Dataset("imagenet-c", images, labels[chosen], classes, chosen, provenance, source)


def load_folder(path: Path, *, preprocess: Preprocess | None = None) -> Dataset:
    """Load any folder: class folders of images, or images alone, which stay unlabelled.

    Args:
        path: the folder.
        preprocess: the model's, which says size, resize and crop; None takes the first picture's shorter side.
    """
    paths, labels, classes = _pictures(path)
    side = preprocess.size if preprocess else min(picture_size(paths[0]))
    provenance = _provenance("folder", "test", "all", path, [str(file.relative_to(path)) for file in paths])
    dataset = Dataset(f"folder:{path.name}", Files(paths, side, side), labels, classes, provenance=provenance)
    return dataset.prepared(preprocess)


def count_folder(path: Path) -> int:
    """Return how many pictures `load_folder` would find, without opening any.

    Raises:
        DataError: there are none.
    """
    return len(_pictures(path)[0])


def _pictures(path: Path) -> tuple[list[Path], NDArray[np.int64], tuple[str, ...] | None]:
    """Return a folder's pictures with their labels and the classes: those of class folders, else its own."""
    if not path.is_dir():
        raise DataError(f"`{path}` is no folder; give `folder:PATH` a folder of images.")
    found = {entry: image_files(entry) for entry in path.iterdir() if entry.is_dir()}
    groups = in_order(entry for entry, files in found.items() if files)
    named = [(file, label) for label, group in enumerate(groups) for file in found[group]]
    named = named or [(file, UNLABELLED) for file in image_files(path)]
    if not named:
        raise DataError(
            f"`{path}` has no images (png, jpg, jpeg, webp, bmp), neither directly nor in class folders."
        )
    labels = np.array([label for _, label in named], np.int64)
    return [file for file, _ in named], labels, tuple(group.name for group in groups) or None


def in_order(folders: Iterable[Path]) -> list[Path]:
    """Return class folders in the order of their labels: as numbers where all names are numbers, else as text."""
    listed = sorted(folders)
    if all(folder.name.isdecimal() for folder in listed):
        return sorted(listed, key=lambda folder: int(folder.name))
    return listed


def choose(files: list[str], labels: NDArray[np.int64], protocol: str) -> Positions:
    """Return the positions a protocol keeps, in the order of the full list."""
    if protocol == "50k":
        return np.arange(len(files), dtype=np.int64)
    per_class = {"5k": 5, "1k": 1}.get(protocol)
    if protocol.startswith("per-class-") and protocol[10:].isdecimal() and len(protocol) < 20:
        per_class = int(protocol[10:])
    if per_class is not None:
        groups = (np.flatnonzero(labels == label)[:per_class] for label in np.unique(labels))
        return np.sort(np.concatenate(list(groups))).astype(np.int64)
    return _from_list(files, protocol)


def _from_list(files: list[str], protocol: str) -> Positions:
    path = Path(protocol)
    if not path.is_file():
        raise OptionError(
            f"`protocol` must be one of {', '.join(PROTOCOLS)}, per-class-N or a file that lists images; "
            f"got {protocol!r}."
        )
    position = {file: index for index, file in enumerate(files)}
    wanted = [line.strip() for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
    missing = [name for name in wanted if name not in position]
    if missing:
        raise DataError(
            f"`{path}` lists {missing[0]!r}, which is not there ({len(missing)} of {len(wanted)} are not)."
        )
    return np.array([position[name] for name in wanted], np.int64)


def _listing(folder: Path) -> tuple[list[str], NDArray[np.int64], tuple[str, ...]]:
    classes = [entry.name for entry in in_order(e for e in folder.iterdir() if e.is_dir())]
    files: list[str] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = [f"{name}/{path.name}" for path in image_files(folder / name)]
        files += found
        labels += [label] * len(found)
    if not files:
        raise DataError(f"`{folder}` has no class folders with images; expected `<class>/<file>.JPEG`.")
    return files, np.array(labels, np.int64), tuple(classes)


def _find(root: Path, part: str) -> Path:
    for folder in candidates(root, "imagenet"):
        if (folder / part).is_dir():
            return folder / part
    raise DataError(
        f"ImageNet's `{part}/<class>/` folders were not found under `{root}`; its authors give it to registered users "
        f"only (image-net.org): unpack it to `{root / 'imagenet' / part}`."
    )


def _a_severity(folder: Path) -> Path | None:
    found = (
        s for c in sorted(folder.iterdir()) if c.is_dir() for s in sorted(c.iterdir()) if s.name in "12345"
    )
    return next((path for path in found if path.is_dir()), None)


def _provenance(name: str, split: str, protocol: str, folder: Path, files: list[str]) -> dict[str, object]:
    listed = hashlib.sha256("\n".join(files).encode()).hexdigest()[:16]
    return {
        "dataset": name,
        "split": split,
        "protocol": protocol,
        "path": str(folder),
        "count": len(files),
        "checksum": f"files:{listed}",
    }
