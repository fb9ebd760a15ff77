"""Published -C arrays are mapped and read by corruption, severity and index; damage is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sicl.corruptions import corrupt
from sicl.data import load_dataset
from sicl.errors import DataError

Arrays = dict[str, np.ndarray]
Write = Callable[..., Path]


def test_a_severity_is_its_block_of_the_array(write_cifar_c: Write, cifar_arrays: Arrays) -> None:
    """Severity s begins at image (s - 1) * N."""
    dataset = load_dataset("cifar10-c", write_cifar_c("fog", "snow"))
    positions = np.array([3, 0, 39])
    got = dataset.read(positions, "snow", severity=4)
    np.testing.assert_array_equal(got, cifar_arrays["x_test"][positions] // 2 + 41)


def test_a_subset_reads_its_own_images(write_cifar_c: Write, cifar_arrays: Arrays) -> None:
    """Positions of a subset are translated to the published index."""
    dataset = load_dataset("cifar10-c", write_cifar_c("fog")).subset(np.array([7, 5]))
    np.testing.assert_array_equal(
        dataset.read(np.array([1]), "fog", severity=1), cifar_arrays["x_test"][5:6] // 2 + 10
    )


def test_without_clean_images_only_the_clean_domain_is_missing(write_cifar_c: Write) -> None:
    """Corrupted images can be streamed alone; asking for clean ones says where to get them."""
    dataset = load_dataset("cifar10-c", write_cifar_c("fog"))
    assert dataset.read(np.array([0]), "fog").shape == (1, 32, 32, 3)
    with pytest.raises(DataError, match="sicl data get cifar10"):
        dataset.read(np.array([0]))


def test_without_published_files_corruptions_are_made(write_cifar: Write, cifar_arrays: Arrays) -> None:
    """The clean test set is enough: each image is corrupted with its own index."""
    dataset = load_dataset("cifar10-c", write_cifar("npz"))
    positions = np.array([4, 11])
    expected = corrupt(
        cifar_arrays["x_test"][positions], "gaussian_noise", severity=3, seed=5, indices=positions
    )
    np.testing.assert_array_equal(dataset.read(positions, "gaussian_noise", severity=3, seed=5), expected)
    assert dataset.provenance["corrupted"] == "made while streaming"


def test_a_truncated_array_is_named_with_its_sizes(write_cifar_c: Write) -> None:
    """The header's promise and the file's size are both told."""
    root = write_cifar_c("fog")
    path = root / "CIFAR-10-C" / "fog.npy"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(
        DataError, match=r"fog.npy` is truncated: its header promises 614,528 bytes, it has 614,428"
    ):
        load_dataset("cifar10-c", root).read(np.array([0]), "fog")


def test_a_file_that_is_no_array_is_named(write_cifar_c: Write) -> None:
    """An HTML error page saved as .npy is not read."""
    root = write_cifar_c("fog")
    (root / "CIFAR-10-C" / "fog.npy").write_text("<html>404</html>")
    with pytest.raises(DataError, match=r"fog.npy` is no .npy file or its header is damaged"):
        load_dataset("cifar10-c", root).read(np.array([0]), "fog")


def test_an_array_of_another_shape_is_named(write_cifar_c: Write) -> None:
    """Four severities are not five."""
    root = write_cifar_c("fog")
    np.save(root / "CIFAR-10-C" / "fog.npy", np.zeros((160, 32, 32, 3), np.uint8))
    with pytest.raises(
        DataError, match=r"fog.npy` is uint8 \(160, 32, 32, 3\), expected uint8 \(200, 32, 32, 3\)"
    ):
        load_dataset("cifar10-c", root).read(np.array([0]), "fog")


def test_an_array_of_objects_is_never_unpickled(write_cifar_c: Write) -> None:
    """An object array could run code; it is refused by its header."""
    root = write_cifar_c("fog")
    np.save(root / "CIFAR-10-C" / "labels.npy", np.array([{}, {}], object))
    with pytest.raises(DataError, match=r"labels.npy` holds Python objects"):
        load_dataset("cifar10-c", root)


def test_a_missing_corruption_names_those_present(write_cifar_c: Write) -> None:
    """The message lists what is there and the nearest."""
    dataset = load_dataset("cifar10-c", write_cifar_c("fog", "frost"))
    with pytest.raises(DataError, match=r"frog.npy` is missing; .* has fog, frost.*Did you mean"):
        dataset.read(np.array([0]), "frog")


def test_labels_that_differ_between_severities_are_mislabelled(write_cifar_c: Write) -> None:
    """The five severities show the same images."""
    root = write_cifar_c("fog")
    path = root / "CIFAR-10-C" / "labels.npy"
    labels = np.load(path)
    labels[45] = (labels[45] + 1) % 10
    np.save(path, labels)
    with pytest.raises(DataError, match=r"labels.npy` is mislabelled: the five severities"):
        load_dataset("cifar10-c", root)


def test_a_wrong_number_of_labels_is_named(write_cifar_c: Write) -> None:
    """199 labels cannot be five severities."""
    root = write_cifar_c("fog")
    np.save(root / "CIFAR-10-C" / "labels.npy", np.zeros(199, np.uint8))
    with pytest.raises(DataError, match=r"labels.npy` is uint8 \(199,\); expected integers"):
        load_dataset("cifar10-c", root)


def test_labels_of_another_data_set_are_refused(write_cifar_c: Write) -> None:
    """CIFAR-100 labels beside CIFAR-10-C arrays are out of range."""
    root = write_cifar_c("fog")
    np.save(root / "CIFAR-10-C" / "labels.npy", np.tile(np.arange(40), 5).astype(np.uint8))
    with pytest.raises(DataError, match=r"labels.npy` has label 10 at position 10, outside 0..9"):
        load_dataset("cifar10-c", root)


def test_clean_labels_must_agree(write_cifar: Write, write_cifar_c: Write) -> None:
    """If clean and corrupted labels differ, one of them is wrong, and nothing is streamed."""
    write_cifar("npz")
    root = write_cifar_c("fog")
    np.save(root / "CIFAR-10-C" / "labels.npy", np.zeros(200, np.uint8))
    with pytest.raises(DataError, match=r"the labels of cifar10-c and of cifar10 .* differ"):
        load_dataset("cifar10-c", root)


def test_a_copy_elsewhere_has_the_same_fingerprint(write_cifar_c: Write, tmp_path: Path) -> None:
    """Neither place nor time of the files matters; their content does."""
    root = write_cifar_c("fog")
    before = load_dataset("cifar10-c", root).fingerprint
    copy = tmp_path / "copy" / "CIFAR-10-C"
    copy.mkdir(parents=True)
    for path in (root / "CIFAR-10-C").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert load_dataset("cifar10-c", copy.parent).fingerprint == before
    array = np.load(copy / "fog.npy")
    np.save(copy / "fog.npy", array // 2)
    assert load_dataset("cifar10-c", copy.parent).fingerprint != before
