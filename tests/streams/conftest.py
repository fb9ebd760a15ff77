"""A small data set whose pixels tell which image they came from."""

from __future__ import annotations

import numpy as np
import pytest

from sicl.data import Dataset

N = 120


class Painted:
    """Stand-in for published corrupted images: the first pixel holds the index, the second the corruption."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self.reads: list[int] = []

    def read(self, corruption: str, severity: int, indices: np.ndarray) -> np.ndarray:
        """Paint the images."""
        self.reads.append(len(indices))
        images = np.zeros((len(indices), 8, 8, 3), np.uint8)
        images[:, 0, 0, 0] = indices
        images[:, 0, 1, 0] = self.names.index(corruption)
        images[:, 0, 2, 0] = severity
        return images

    def describe(self) -> dict[str, object]:
        """Nothing to say."""
        return {}


@pytest.fixture
def painted() -> Dataset:
    """120 images of 10 classes, sorted by class, with every corruption painted."""
    from sicl.corruptions import CORRUPTIONS

    images = np.zeros((N, 8, 8, 3), np.uint8)
    images[:, 0, 0, 0] = np.arange(N)
    labels = np.arange(N, dtype=np.int64) * 10 // N
    return Dataset("painted", images, labels, corrupted=Painted(CORRUPTIONS))


@pytest.fixture
def plain() -> Dataset:
    """60 random 32-pixel images whose corruptions have to be made."""
    images = np.random.default_rng(0).integers(0, 256, (60, 32, 32, 3), np.uint8)
    return Dataset("plain", images, np.arange(60, dtype=np.int64) % 10, provenance={"checksum": "plain"})
