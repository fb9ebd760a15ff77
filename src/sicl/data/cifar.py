"""CIFAR-10 and CIFAR-100 in the layouts people have them in."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sicl.data.dataset import Dataset, arrays_dataset, check_labels
from sicl.data.files import KNOWN, candidates
from sicl.data.images import Uint8Images, image_files
from sicl.data.npy import read_npz
from sicl.data.sheets import class_names, read_json, read_labels, read_picture, read_row_sheet, read_sheet
from sicl.errors import DataError, is_integer, reason

# The one function numpy's own pickles call, wherever this numpy version keeps it.
_RECONSTRUCT = np.zeros(1).__reduce__()[0]


class _ArrayUnpickler(pickle.Unpickler):
    """Allow numpy arrays and plain values, refuse everything else."""

    def find_class(self, module: str, name: str) -> object:
        """Resolve the three names a pickled array needs."""
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return _RECONSTRUCT
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return _encode
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _encode(text: str, encoding: str) -> bytes:
    return text.encode(encoding)


def read_pickle(path: Path) -> dict[str, object]:
    """Read a pickled dictionary of arrays, lists and strings; keys come back as `str`."""
    try:
        with path.open("rb") as file:
            content = _ArrayUnpickler(file, encoding="bytes").load()
    except FileNotFoundError:
        raise DataError(f"`{path}` is missing.") from None
    except Exception as error:  # a pickle is a program: a damaged one fails in any way
        raise DataError(
            f"`{path}` is truncated, damaged or no CIFAR batch ({reason(error)}); download it again."
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"`{path}` is no CIFAR batch: it holds {type(content).__name__}, not a dictionary.")
    return {_text(key): value for key, value in content.items()}


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


@dataclass(frozen=True)
class Cifar:
    """What tells the two data sets apart."""

    name: str
    folders: Sequence[str]
    n_classes: int
    train_files: Sequence[str]
    test_file: str
    label_key: str
    meta: Sequence[str]
    classes: Sequence[str] = ()


CIFARS = {
    name: Cifar(name, KNOWN[name]["folders"], **KNOWN[name]["batches"]) for name in ("cifar10", "cifar100")
}


@dataclass(frozen=True)
class _Part:
    """Images and labels as a layout's reader found them; `held_out` says they are already the validation part."""

    images: Uint8Images
    labels: NDArray[np.int64]
    classes: tuple[str, ...] | None
    held_out: bool = False


def load_cifar(name: str, root: Path, split: str) -> Dataset:
    """Load a split of CIFAR-10 or CIFAR-100 from whichever layout lies under `root`.

    Raises:
        DataError: nothing known lies there, or a file is damaged, short or mislabelled.
    """
    kind = CIFARS[name]
    for folder in candidates(root, name):
        layout = layout_of(kind, folder)
        if layout is not None:
            return _build(kind, folder, layout, split)
    raise DataError(
        f"{name} was not found under `{root}` (as python batches, class folders, npz or sheets); "
        f"get it with `sicl data get {name} --data {root}`."
    )


def layout_of(kind: Cifar, folder: Path) -> str | None:
    """Name the layout of `folder`: "batches", "row sheets", "sheets", "npz", "folders", or None."""
    if (folder / kind.test_file).is_file():
        return "batches"
    if (folder / f"{kind.test_file}.png").is_file() and (folder / "test_lables.json").is_file():
        return "row sheets"
    if _sheet(folder, "test") is not None and _names_classes(kind, folder / "labels.json"):
        return "sheets"
    if _npz(kind, folder) is not None:
        return "npz"
    # Any folder may have folders with pictures: they are classes if their number or the folder's name says so.
    groups = [path for path in _class_folders(folder, "test") if image_files(path)]
    return "folders" if len(groups) == kind.n_classes or (groups and folder.name in kind.folders) else None


def _build(kind: Cifar, folder: Path, layout: str, split: str) -> Dataset:
    part = _READERS[layout](kind, folder, split)
    classes = part.classes or tuple(kind.classes) or None
    if len(part.images) != len(part.labels):
        raise DataError(
            f"`{folder}` ({layout}) has {len(part.images)} images but {len(part.labels)} labels in its "
            f"{split} part; replace the incomplete file."
        )
    check_labels(part.labels, kind.n_classes, f"{folder} ({layout}, {split})")
    found = (kind.name, part.images, part.labels, classes, split)
    return arrays_dataset(*found, whole=part.held_out, layout=layout, path=str(folder))


def _read_batches(kind: Cifar, folder: Path, split: str) -> _Part:
    files = (kind.test_file,) if split == "test" else kind.train_files
    images, labels = zip(*(_read_batch(folder / file, kind.label_key) for file in files))
    meta = folder / kind.meta[0]
    names = read_pickle(meta).get(kind.meta[1]) if meta.is_file() else None
    classes = tuple(map(_text, names)) if isinstance(names, list) else None
    return _Part(np.concatenate(images), np.concatenate(labels), classes)


def _read_batch(path: Path, label_key: str) -> tuple[Uint8Images, NDArray[np.int64]]:
    content = read_pickle(path)
    data, labels = content.get("data"), content.get(label_key)
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2 or data.shape[1] != 3072:
        raise DataError(f"`{path}` has no N x 3072 uint8 array `data`; it is no CIFAR batch.")
    if not isinstance(labels, list) or len(labels) != len(data) or not all(map(is_integer, labels)):
        raise DataError(
            f"`{path}` has {len(data)} images but no list of as many `{label_key}`; download it again."
        )
    return data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), np.array(labels, np.int64)


def _read_row_sheets(kind: Cifar, folder: Path, split: str) -> _Part:
    files = (kind.test_file,) if split == "test" else kind.train_files
    images = np.concatenate([read_row_sheet(folder / f"{file}.png") for file in files])
    return _Part(images, read_labels(folder / f"{'test' if split == 'test' else 'train'}_lables.json"), None)


def _read_sheets(kind: Cifar, folder: Path, split: str) -> _Part:
    content = read_json(folder / "labels.json")
    held_out = split == "val" and _sheet(folder, "val") is not None
    part = split if split == "test" or held_out else "train"
    sheet = _sheet(folder, part)
    if sheet is None:
        raise DataError(f"`{folder}` has no {part}.webp or {part}.png; its {split} part is not there.")
    labels = read_labels(folder / "labels.json", f"{part}_labels")
    return _Part(read_sheet(sheet, count=len(labels)), labels, class_names(content), held_out)


def _read_npz(kind: Cifar, folder: Path, split: str) -> _Part:
    path = _npz(kind, folder) or folder
    part = "test" if split == "test" else "train"
    alone = part == "test"
    x = read_npz(path, [f"x_{part}", f"{part}_x", f"{part}_images", *(("x", "images") if alone else ())])
    y = read_npz(path, [f"y_{part}", f"{part}_y", f"{part}_labels", *(("y", "labels") if alone else ())])
    if x is None or y is None or y.dtype.kind not in "iu":
        raise DataError(f"`{path}` lacks the arrays x_{part} and y_{part} (integers).")
    images = x.transpose(0, 2, 3, 1) if x.ndim == 4 and x.shape[1] == 3 else x
    if images.dtype != np.uint8 or images.shape[1:] != (32, 32, 3):
        raise DataError(f"`{path}` has {x.dtype} images of shape {x.shape}; expected uint8 N x 32 x 32 x 3.")
    return _Part(np.asarray(images, np.uint8), y.reshape(-1).astype(np.int64), None)


def _read_folders(kind: Cifar, folder: Path, split: str) -> _Part:
    folders = _class_folders(folder, "test" if split == "test" else "train")
    names = [path.name for path in folders]
    if len(folders) != kind.n_classes:
        raise DataError(
            f"`{folder}` has {len(folders)} class folders; {kind.name} has {kind.n_classes} classes."
        )
    order = {name: label for label, name in enumerate(kind.classes or sorted(names))}
    if set(names) != set(order):
        order = {name: label for label, name in enumerate(sorted(names))}
    files = [(path, order[path.parent.name]) for group in folders for path in image_files(group)]
    if not files:
        raise DataError(f"`{folder}` has class folders but no pictures in its {split} part.")
    pictures = [read_picture(path) for path, _ in files]
    for (path, _), picture in zip(files, pictures):
        if picture.shape != (32, 32, 3):
            raise DataError(
                f"`{path}` is {picture.shape[1]} x {picture.shape[0]} pixels; CIFAR images are 32 x 32."
            )
    classes = tuple(sorted(order, key=lambda name: order[name]))
    return _Part(np.stack(pictures), np.array([label for _, label in files], np.int64), classes)


def _class_folders(folder: Path, part: str) -> list[Path]:
    base = folder / part if (folder / part).is_dir() else folder
    return sorted(
        path for path in base.iterdir() if path.is_dir() and path.name not in ("train", "test", "val")
    )


def _names_classes(kind: Cifar, labels: Path) -> bool:
    names = class_names(read_json(labels)) if labels.is_file() else ()
    return names is None or len(names) == kind.n_classes


def _sheet(folder: Path, part: str) -> Path | None:
    return next((p for p in (folder / f"{part}.webp", folder / f"{part}.png") if p.is_file()), None)


def _npz(kind: Cifar, folder: Path) -> Path | None:
    names = [f"{stem}.npz" for stem in (*kind.folders, "data")]
    return next((folder / name for name in names if (folder / name).is_file()), None)


_READERS = {
    "batches": _read_batches,
    "row sheets": _read_row_sheets,
    "sheets": _read_sheets,
    "npz": _read_npz,
    "folders": _read_folders,
}
