"""MNIST and SVHN as published, and their damages."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from sicl.data import load_dataset
from sicl.errors import DataError


def test_mnist_becomes_three_equal_channels(write_mnist: Path) -> None:
    """Grey pictures are repeated over the channels."""
    dataset = load_dataset("mnist", write_mnist)
    images = dataset.images[np.arange(12)]
    assert images.shape == (12, 28, 28, 3)
    np.testing.assert_array_equal(images[..., 0], images[..., 2])
    assert dataset.labels[11] == 1


def test_gzipped_mnist_is_read_as_it_is_published(write_mnist: Path) -> None:
    """The .gz files need no unpacking."""
    plain = load_dataset("mnist", write_mnist)
    for path in list((write_mnist / "mnist").iterdir()):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert load_dataset("mnist", write_mnist).fingerprint == plain.fingerprint


def test_a_truncated_idx_file_is_named(write_mnist: Path) -> None:
    """The promised and the found number of values are told."""
    path = write_mnist / "mnist" / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte` is truncated: it promises \(12, 28, 28\)"):
        load_dataset("mnist", write_mnist)


def test_labels_in_the_place_of_images_are_noticed(write_mnist: Path) -> None:
    """The magic number tells the two kinds apart."""
    folder = write_mnist / "mnist"
    (folder / "t10k-images-idx3-ubyte").write_bytes(
        (folder / "t10k-labels-idx1-ubyte").read_bytes() + bytes(20)
    )
    with pytest.raises(DataError, match="its magic number is 2049, not 2051"):
        load_dataset("mnist", write_mnist)


def test_missing_mnist_says_how_to_get_it(tmp_path: Path) -> None:
    """The command is in the message."""
    with pytest.raises(DataError, match="sicl data get mnist"):
        load_dataset("mnist", tmp_path)


def test_svhn_counts_ten_as_zero(tmp_path: Path) -> None:
    """SVHN writes the digit 0 as class 10."""
    (tmp_path / "svhn").mkdir()
    images = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), np.uint8)
    savemat(tmp_path / "svhn" / "test_32x32.mat", {"X": images, "y": np.array([[1], [10], [9], [10]])})
    dataset = load_dataset("svhn", tmp_path)
    assert dataset.labels.tolist() == [1, 0, 9, 0]
    np.testing.assert_array_equal(dataset.images[np.array([2])][0], images[..., 2])


def test_a_damaged_svhn_file_is_named(tmp_path: Path) -> None:
    """Half a .mat file is reported."""
    (tmp_path / "test_32x32.mat").write_bytes(b"MATLAB 5.0 MAT-file" + bytes(200))
    with pytest.raises(DataError, match=r"test_32x32.mat` is damaged or no MATLAB 5 file"):
        load_dataset("svhn", tmp_path)
