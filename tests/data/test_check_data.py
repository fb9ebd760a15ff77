"""`check` names what is damaged, truncated or mislabelled, and passes what is sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sicl.data.check import Finding, check_dataset
from sicl.errors import OptionError

Write = Callable[..., Path]


def _wrong(findings: list[Finding]) -> list[str]:
    return [finding.message for finding in findings if not finding.ok]


def test_a_sound_folder_has_no_faults(write_cifar_c: Write) -> None:
    """Labels and each corruption are looked at."""
    findings = check_dataset("cifar10-c", write_cifar_c("fog", "snow"))
    assert [finding.what for finding in findings] == ["labels.npy", "fog.npy", "snow.npy"]
    assert _wrong(findings) == []


def test_nothing_there_is_no_fault(tmp_path: Path) -> None:
    """An absent data set has no findings."""
    assert check_dataset("cifar10-c", tmp_path) == []


def test_one_damaged_file_does_not_hide_the_others(write_cifar_c: Write) -> None:
    """The truncated one is wrong, the rest is still checked."""
    root = write_cifar_c("fog", "frost", "snow")
    path = root / "CIFAR-10-C" / "frost.npy"
    path.write_bytes(path.read_bytes()[:-1])
    findings = check_dataset("cifar10-c", root)
    assert [finding.ok for finding in findings] == [True, True, False, True]
    assert "frost.npy` is truncated" in findings[2].message


def test_a_file_under_another_name_is_mislabelled(write_cifar_c: Write) -> None:
    """The same images cannot be two corruptions."""
    root = write_cifar_c("fog", "snow")
    folder = root / "CIFAR-10-C"
    (folder / "snow.npy").write_bytes((folder / "fog.npy").read_bytes())
    (message,) = _wrong(check_dataset("cifar10-c", root))
    assert "snow.npy` is mislabelled: at severity 1 it has the images of fog.npy" in message


def test_an_empty_block_was_not_written_to_the_end(write_cifar_c: Write) -> None:
    """Zeros where a severity should be are found."""
    root = write_cifar_c("fog")
    path = root / "CIFAR-10-C" / "fog.npy"
    array = np.load(path)
    array[160:] = 0
    np.save(path, array)
    (message,) = _wrong(check_dataset("cifar10-c", root))
    assert "fog.npy` is empty at severity 5" in message


def test_images_in_another_order_are_noticed(write_cifar: Write, write_cifar_c: Write) -> None:
    """With the clean images at hand, corrupted ones must resemble them one by one."""
    write_cifar("npz")
    root = write_cifar_c("fog")
    assert _wrong(check_dataset("cifar10-c", root)) == []
    path = root / "CIFAR-10-C" / "fog.npy"
    np.save(path, np.load(path)[::-1])
    (message,) = _wrong(check_dataset("cifar10-c", root))
    assert "fog.npy` does not show the clean images in their order" in message


def test_labels_unlike_the_clean_ones_are_mislabelled(write_cifar: Write, write_cifar_c: Write) -> None:
    """The clean labels decide."""
    write_cifar("npz")
    root = write_cifar_c("fog")
    np.save(root / "CIFAR-10-C" / "labels.npy", np.ones(200, np.uint8))
    (message,) = _wrong(check_dataset("cifar10-c", root))
    assert "labels.npy` is mislabelled: it differs from the labels of cifar10" in message


def test_a_short_cifar_is_counted(write_cifar: Write) -> None:
    """Forty test images are not CIFAR-10's ten thousand."""
    messages = _wrong(check_dataset("cifar10", write_cifar("batches")))
    assert "has 40 images in its test part; cifar10 has 10,000" in messages[0]


def test_deep_checks_decode_every_picture(write_imagenet: Write) -> None:
    """A damaged JPEG is found only when it is decoded."""
    root = write_imagenet()
    path = root / "imagenet" / "val" / "n03" / "val_n03_006.JPEG"
    path.write_bytes(path.read_bytes()[:300])
    assert _wrong(check_dataset("imagenet", root)) == []
    (message,) = _wrong(check_dataset("imagenet", root, deep=True))
    assert "val_n03_006.JPEG` is damaged" in message


def test_the_demo_data_are_sound() -> None:
    """They come with the package."""
    assert [finding.ok for finding in check_dataset("demo")] == [True, True]


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    """With the nearest names."""
    with pytest.raises(OptionError, match="Did you mean 'cifar10-c'"):
        check_dataset("cifar10c", tmp_path)
