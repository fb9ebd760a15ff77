"""A data set: uint8 images read by position, labels, and where they came from."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from sicl.data.images import Images, Positions, Subset, Uint8Images, prepared
from sicl.errors import LARGEST_INT, DataError, OptionError, require_between, require_count, require_integer

if TYPE_CHECKING:
    import torch

    from sicl.models.preprocess import Preprocess
    from sicl.types import SourceData

UNLABELLED = -2
"""The label of a picture whose class nobody has said; a data set has labels for all of its pictures or for none."""
CLEAN = "clean"
"""The name of the domain without corruption."""


class CorruptedImages(Protocol):
    """Corrupted images already on disk, by (corruption, severity, index in the published test set)."""

    def read(self, corruption: str, severity: int, indices: Positions) -> Uint8Images:
        """Read some images of one corruption and severity."""
        ...

    def describe(self) -> dict[str, object]:
        """Say where they are, for the provenance."""
        ...


@dataclass(frozen=True)
class Dataset:
    """Labelled images that corruption and order make a stream of.

    Args:
        name: "cifar10", "demo", ...
        images: the clean images, N x H x W x 3 uint8, in memory, mapped from disk or decoded when read.
        labels: int64, N; all `UNLABELLED` where no class is known.
        classes: the class names in label order, or None.
        indices: int64, N: each image's index in the published split; it seeds that image's corruption, so a
            subset is corrupted as the whole would be.
        provenance: where the data came from; JSON-able, part of every result.
        corrupted: published or previously made corrupted images; None makes them from the clean ones.
    """

    name: str
    images: Images
    labels: NDArray[np.int64]
    classes: tuple[str, ...] | None = None
    indices: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    provenance: Mapping[str, object] = field(default_factory=dict)
    corrupted: CorruptedImages | None = None

    def __post_init__(self) -> None:
        shape: tuple[int, ...] = getattr(self.images, "shape", ())
        if len(shape) != 4 or shape[3] != 3 or getattr(self.labels, "dtype", None) != np.int64:
            raise DataError(
                f"`{self.name}` needs N x H x W x 3 images and N int64 labels, got images of shape {tuple(shape)} and "
                f"labels of {getattr(self.labels, 'dtype', type(self.labels).__name__)}."
            )
        if len(self.indices) == 0:
            object.__setattr__(self, "indices", np.arange(len(self.labels), dtype=np.int64))
        if self.images.shape[0] != len(self.labels) or len(self.indices) != len(self.labels):
            raise DataError(
                f"`{self.name}` has {self.images.shape[0]} images but {len(self.labels)} labels; "
                "one of the two files is not the right one."
            )
        if self.labelled:
            check_labels(self.labels, self.n_classes, self.name)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def labelled(self) -> bool:
        """Whether the classes of the pictures are known."""
        return not len(self.labels) or bool((self.labels != UNLABELLED).any())

    @property
    def n_classes(self) -> int:
        """How many classes there are (the largest label + 1 where they have no names; 0 without labels)."""
        if not self.labelled:
            return 0
        return len(self.classes) if self.classes else int(self.labels.max(initial=0)) + 1

    @property
    def size(self) -> int:
        """Pixels a side."""
        return int(self.images.shape[1])

    @property
    def fingerprint(self) -> str:
        """A short hash of the content (not of the place): equal for equal data, part of cache keys."""
        places = ("path", "layout", "corrupted_path")
        content = {key: value for key, value in self.provenance.items() if key not in places}
        digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode())
        digest.update(np.ascontiguousarray(self.labels).tobytes())
        digest.update(np.ascontiguousarray(self.indices).tobytes())
        return digest.hexdigest()[:16]

    def subset(self, positions: NDArray[np.integer]) -> Dataset:
        """Return the data set of some positions, in that order, without copying images."""
        chosen = np.asarray(positions, np.int64)
        return replace(
            self, images=Subset(self.images, chosen), labels=self.labels[chosen], indices=self.indices[chosen]
        )

    def prepared(self, preprocess: Preprocess | None) -> Dataset:
        """Return the data set with its picture files resized and cropped as a model's `preprocess` states."""
        if preprocess is None or self.corrupted is not None:
            return self
        images = prepared(self.images, preprocess)
        if images is self.images:
            return self
        stated = {**self.provenance, "preprocess": preprocess.to_json()}
        return replace(self, images=images, provenance=stated)

    def read(
        self,
        positions: Positions,
        corruption: str = CLEAN,
        *,
        severity: int = 5,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> Uint8Images:
        """Read images, clean or corrupted: from the published files where there are any, else made now.

        `device` is where corruptions are computed; it does not change them.
        """
        if corruption == CLEAN:
            return np.asarray(self.images[positions])
        if self.corrupted is not None:
            return self.corrupted.read(corruption, severity, self.indices[positions])
        import torch

        from sicl.corruptions import corrupt

        clean = torch.from_numpy(np.require(self.images[positions], requirements=["C", "W"])).to(device)
        made = corrupt(clean, corruption, severity=severity, seed=seed, indices=self.indices[positions])
        pixels: Uint8Images = made.cpu().numpy()
        return pixels


def check_labels(labels: NDArray[np.int64], n_classes: int, where: str) -> None:
    """Raise `DataError` unless every label is a class."""
    wrong = np.flatnonzero((labels < 0) | (labels >= n_classes))
    if len(wrong):
        raise DataError(
            f"`{where}` has label {labels[wrong[0]]} at position {wrong[0]}, outside 0..{n_classes - 1}; "
            "the label file belongs to another data set or is damaged."
        )


def split_positions(count: int, split: str) -> Positions:
    """Return the training positions (i % 10 != 9) or the held-out source validation ones (i % 10 == 9)."""
    if split not in ("train", "val"):
        raise OptionError(f"`split` must be train, val or test; got {split!r}.")
    held_out = np.arange(count) % 10 == 9
    return np.flatnonzero(held_out if split == "val" else ~held_out).astype(np.int64)


def arrays_dataset(
    name: str,
    images: Uint8Images,
    labels: NDArray[np.int64],
    classes: tuple[str, ...] | None,
    split: str,
    *,
    whole: bool = False,
    **stated: object,
) -> Dataset:
    """Return a split of images in memory, of training images those of "train" or "val".

    Args:
        name: of the data set.
        images: all of a file's.
        labels: theirs.
        classes: their names.
        split: "test", "train" or "val".
        whole: these are the split's images already.
        stated: what else the provenance says.
    """
    indices = np.arange(len(labels), dtype=np.int64)
    if split != "test" and not whole:
        indices = split_positions(len(labels), split)
        images, labels = images[indices], labels[indices]
    crc = f"crc32:{zlib.crc32(np.ascontiguousarray(images).tobytes()):08x}"
    stated = {"dataset": name, "split": split, **stated, "count": len(labels), "checksum": crc}
    return Dataset(name, images, labels, classes, indices, stated)


def source_data(
    dataset: Dataset, *, n: int | None = None, device: torch.device | str = "cpu", seed: int = 0
) -> SourceData:
    """Return labelled source data as tensors, for the methods and calibrators that need some.

    Args:
        dataset: usually `load_dataset(name, split="val")`.
        n: how many images, drawn without replacement; None takes all.
        device: where the tensors go.
        seed: of the draw.
    """
    import torch

    from sicl.types import SourceData

    require_count(n=1 if n is None else n)
    require_integer(seed=seed)
    require_between(0, LARGEST_INT, seed=seed)
    order = np.random.default_rng(seed).permutation(len(dataset)).astype(np.int64)
    chosen = np.sort(order[:n])
    pixels = torch.from_numpy(np.ascontiguousarray(dataset.images[chosen])).to(device)
    images = pixels.permute(0, 3, 1, 2).contiguous().float().div_(255)
    return SourceData(images, torch.from_numpy(dataset.labels[chosen]).to(device))
