"""The published -C data sets: one array a corruption (CIFAR) or one folder a severity (ImageNet)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sicl.data.images import Files, Positions, Uint8Images
from sicl.data.npy import map_npy
from sicl.data.sheets import read_json
from sicl.errors import DataError, nearest

SEVERITIES = (1, 2, 3, 4, 5)
MANIFEST = "made.json"
"""Written beside arrays that `sicl data make` made: seed, source and the severities that are really there."""


@dataclass(frozen=True)
class ArrayFolder:
    """`<corruption>.npy` files: five severities of `per_severity` images each, uint8, in order.

    The arrays are mapped, not read: only the images asked for leave the disk.
    """

    folder: Path
    per_severity: int
    size: int = 32
    severities: tuple[int, ...] = SEVERITIES
    _mapped: dict[str, NDArray[np.uint8]] = field(default_factory=dict, repr=False, compare=False)

    def read(self, corruption: str, severity: int, indices: Positions) -> Uint8Images:
        """Read some images of one corruption and severity."""
        if severity not in self.severities:
            raise DataError(
                f"`{self.folder}` was made with severities {', '.join(map(str, self.severities))} only, "
                f"not {severity}; make it with `sicl data make --severity 1-5`."
            )
        array = self._mapped.get(corruption)
        if array is None:
            array = self._mapped[corruption] = self.map(corruption)
        return np.asarray(array[(severity - 1) * self.per_severity + indices])

    def map(self, corruption: str) -> NDArray[np.uint8]:
        """Map one corruption's file after checking its shape."""
        path = self.folder / f"{corruption}.npy"
        present = self.corruptions()
        if corruption not in present:
            raise DataError(
                f"`{path}` is missing; `{self.folder}` has {', '.join(present) or 'no corruption'}."
                f"{nearest(corruption, present)}"
            )
        array = map_npy(path)
        expected = (len(SEVERITIES) * self.per_severity, self.size, self.size, 3)
        if array.shape != expected or array.dtype != np.uint8:
            raise DataError(
                f"`{path}` is {array.dtype} {array.shape}, expected uint8 {expected}; replace it."
            )
        return array.view(np.uint8)

    def corruptions(self) -> list[str]:
        """Return the names of the corruptions that are there."""
        return sorted(path.stem for path in self.folder.glob("*.npy") if path.stem != "labels")

    def describe(self) -> dict[str, object]:
        manifest = self.folder / MANIFEST
        return {
            "corrupted": "made" if manifest.is_file() else "published",
            "corrupted_path": str(self.folder),
        }


@dataclass(frozen=True)
class ImageFolders:
    """`<corruption>/<severity>/<class>/<file>` of ImageNet-C; `files` are the paths under a severity."""

    folder: Path
    files: tuple[str, ...]
    size: int = 224

    def read(self, corruption: str, severity: int, indices: Positions) -> Uint8Images:
        """Decode some images of one corruption and severity."""
        base = self.folder / corruption / str(severity)
        present = sorted(path.name for path in self.folder.iterdir() if path.is_dir())
        if corruption not in present or not base.is_dir():
            raise DataError(
                f"`{base}` is missing; `{self.folder}` has {', '.join(present)}.{nearest(corruption, present)}"
            )
        paths = [base / self.files[index] for index in indices]
        return Files(paths, self.size, self.size)[np.arange(len(paths), dtype=np.int64)]

    def describe(self) -> dict[str, object]:
        return {"corrupted": "published", "corrupted_path": str(self.folder)}


def read_c_labels(folder: Path) -> NDArray[np.int64]:
    """Read `labels.npy` of a CIFAR -C folder and return one severity's labels.

    Raises:
        DataError: the file is damaged, or the five severities disagree.
    """
    path = folder / "labels.npy"
    labels = np.asarray(map_npy(path))
    if (
        labels.ndim != 1
        or not np.issubdtype(labels.dtype, np.integer)
        or len(labels) % len(SEVERITIES)
        or not len(labels)
    ):
        raise DataError(
            f"`{path}` is {labels.dtype} {labels.shape}; expected integers, as many for each of five severities."
        )
    blocks = labels.reshape(len(SEVERITIES), -1)
    if (blocks != blocks[0]).any():
        raise DataError(
            f"`{path}` is mislabelled: the five severities do not have the same labels; replace it."
        )
    return np.asarray(blocks[0], np.int64)


def made_severities(folder: Path) -> tuple[int, ...]:
    """Return the severities that are there: all five unless a manifest says otherwise."""
    manifest = folder / MANIFEST
    content = read_json(manifest) if manifest.is_file() else {}
    listed = content.get("severities", SEVERITIES) if isinstance(content, dict) else None
    if not isinstance(listed, list | tuple) or not all(type(s) is int and s in SEVERITIES for s in listed):
        raise DataError(f"`{manifest}` must list severities from 1 to 5; make the data set again.")
    return tuple(listed)
