"""CIFAR comes in five layouts; all say the same, and each damage is named."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sicl.data import load_dataset
from sicl.errors import DataError, OptionError

WriteCifar = Callable[..., Path]
Arrays = dict[str, np.ndarray]


def _everything(dataset: object) -> np.ndarray:
    return dataset.images[np.arange(len(dataset))]  # type: ignore[attr-defined,arg-type]


def _by_content(images: np.ndarray, labels: np.ndarray) -> list[tuple[bytes, int]]:
    return sorted((image.tobytes(), int(label)) for image, label in zip(images, labels))


def test_every_layout_gives_the_test_images_with_their_labels(
    layout: str, write_cifar: WriteCifar, cifar_arrays: Arrays
) -> None:
    """The same pictures and labels come out whichever layout they lie in."""
    dataset = load_dataset("cifar10", write_cifar(layout))
    expected = _by_content(cifar_arrays["x_test"], cifar_arrays["y_test"])
    assert _by_content(_everything(dataset), dataset.labels) == expected
    assert dataset.provenance["layout"] == layout
    assert dataset.classes is not None
    assert dataset.classes[9] == "truck"


@pytest.mark.parametrize("ordered", ["batches", "row sheets", "sheets", "npz"])
def test_validation_is_every_tenth_training_image(
    ordered: str, write_cifar: WriteCifar, cifar_arrays: Arrays
) -> None:
    """Training images with i % 10 == 9 are held out, the others train."""
    root = write_cifar(ordered)
    held_out, train = load_dataset("cifar10", root, "val"), load_dataset("cifar10", root, "train")
    np.testing.assert_array_equal(_everything(held_out), cifar_arrays["x_train"][9::10])
    np.testing.assert_array_equal(held_out.labels, cifar_arrays["y_train"][9::10])
    assert set(held_out.indices.tolist()).isdisjoint(train.indices.tolist())
    assert len(held_out) + len(train) == len(cifar_arrays["x_train"])


def test_splits_share_no_image_in_any_layout(layout: str, write_cifar: WriteCifar) -> None:
    """No picture of validation appears in training or test."""
    root = write_cifar(layout)
    seen = [
        {image.tobytes() for image in _everything(load_dataset("cifar10", root, split))}
        for split in ("train", "val", "test")
    ]
    assert not seen[0] & seen[1]
    assert not seen[1] & seen[2]
    assert not seen[0] & seen[2]


def test_the_fingerprint_knows_the_content_not_the_place(write_cifar: WriteCifar) -> None:
    """The same data in another layout share cached corruptions."""
    first = load_dataset("cifar10", write_cifar("npz", "cifar10") / "cifar10")
    second = load_dataset("cifar10", write_cifar("batches", "CIFAR-10") / "CIFAR-10")
    assert first.provenance["layout"] != second.provenance["layout"]
    assert first.fingerprint == second.fingerprint


def test_the_root_itself_may_be_the_data_folder(write_cifar: WriteCifar) -> None:
    """`--data` may point at the data set instead of its parent."""
    assert len(load_dataset("cifar10", write_cifar("batches") / "cifar10")) == 40


def test_a_sheet_with_its_own_validation_part_is_used_as_it_is(
    write_cifar: WriteCifar, cifar_arrays: Arrays
) -> None:
    """A `val` sheet is already held out; it is not thinned again."""
    from sicl.data.sheets import write_sheet

    folder = write_cifar("sheets") / "cifar10"
    write_sheet(folder / "val.webp", cifar_arrays["x_train"][:6], columns=3, method=0)
    content = json.loads((folder / "labels.json").read_text())
    (folder / "labels.json").write_text(json.dumps({**content, "val_labels": [0, 1, 2, 3, 4, 5]}))
    np.testing.assert_array_equal(
        _everything(load_dataset("cifar10", folder, "val")), cifar_arrays["x_train"][:6]
    )


def test_missing_data_say_how_to_get_them(tmp_path: Path) -> None:
    """The message names the place and the command."""
    with pytest.raises(DataError, match=r"cifar10 was not found under .*sicl data get cifar10"):
        load_dataset("cifar10", tmp_path)


def test_an_unknown_name_lists_the_nearest() -> None:
    """A slip of the finger is answered with what was meant."""
    with pytest.raises(OptionError, match=r"unknown data set 'cifar1O'.*Did you mean.*'cifar10'"):
        load_dataset("cifar1O")


def test_an_unknown_split_is_refused() -> None:
    """There are three splits."""
    with pytest.raises(OptionError, match=r"`split` must be one of test, train, val; got 'valid'"):
        load_dataset("demo", split="valid")


def test_a_truncated_batch_is_named(write_cifar: WriteCifar) -> None:
    """Half a pickle is not data."""
    path = write_cifar("batches") / "cifar10" / "test_batch"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"test_batch` is truncated, damaged or no CIFAR batch"):
        load_dataset("cifar10", path.parent.parent)


class _Trap:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("echo trapped > trapped",)


def test_a_pickle_that_would_run_code_is_refused(
    write_cifar: WriteCifar, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A batch may hold arrays and lists; a call to anything else is not made."""
    root = write_cifar("batches")
    monkeypatch.chdir(tmp_path)
    (root / "cifar10" / "test_batch").write_bytes(pickle.dumps({b"data": _Trap()}))
    with pytest.raises(DataError, match=r"it asks for (posix|nt)\.system"):
        load_dataset("cifar10", root)
    assert not (tmp_path / "trapped").exists()


def test_too_few_labels_are_counted(write_cifar: WriteCifar) -> None:
    """Images and labels have to be as many."""
    root = write_cifar("row sheets")
    path = root / "cifar10" / "test_lables.json"
    path.write_text(json.dumps(json.loads(path.read_text())[:-3]))
    with pytest.raises(DataError, match=r"has 40 images but 37 labels in its test part"):
        load_dataset("cifar10", root)


def test_a_label_out_of_range_is_shown(write_cifar: WriteCifar) -> None:
    """Ten classes have no label 10."""
    root = write_cifar("row sheets")
    path = root / "cifar10" / "test_lables.json"
    path.write_text(json.dumps([10, *json.loads(path.read_text())[1:]]))
    with pytest.raises(DataError, match=r"has label 10 at position 0, outside 0\.\.9"):
        load_dataset("cifar10", root)


def test_labels_that_are_no_integers_are_refused(write_cifar: WriteCifar) -> None:
    """A list of names is no list of labels."""
    root = write_cifar("row sheets")
    (root / "cifar10" / "test_lables.json").write_text('["cat"]')
    with pytest.raises(DataError, match=r"test_lables.json` holds no list of integer labels"):
        load_dataset("cifar10", root)


@pytest.mark.parametrize("suffix", ["webp", "png"])
def test_a_truncated_sheet_is_named(suffix: str, write_cifar: WriteCifar) -> None:
    """A cut picture is reported, not read half."""
    root = write_cifar("sheets")
    path = root / "cifar10" / f"{'test' if suffix == 'webp' else 'train'}.{suffix}"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=rf"{path.name}` is damaged, truncated or no picture"):
        load_dataset("cifar10", root, "test" if suffix == "webp" else "train")


def test_a_truncated_npz_is_named(write_cifar: WriteCifar) -> None:
    """A cut archive is reported."""
    root = write_cifar("npz")
    path = root / "cifar10" / "cifar10.npz"
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(DataError, match=r"cifar10.npz` is damaged or truncated"):
        load_dataset("cifar10", root)


def test_an_npz_without_the_arrays_says_which(write_cifar: WriteCifar) -> None:
    """The missing arrays are named."""
    root = write_cifar("npz")
    np.savez(root / "cifar10" / "cifar10.npz", other=np.zeros(3))
    with pytest.raises(DataError, match=r"lacks the arrays x_test and y_test"):
        load_dataset("cifar10", root)


def test_a_picture_of_another_size_is_named(write_cifar: WriteCifar) -> None:
    """One 16-pixel picture among class folders is found."""
    from PIL import Image

    root = write_cifar("folders")
    Image.new("RGB", (16, 16)).save(root / "cifar10" / "test" / "cat" / "odd.png")
    with pytest.raises(DataError, match=r"odd.png` is 16 x 16 pixels; CIFAR images are 32 x 32"):
        load_dataset("cifar10", root)


def test_nine_class_folders_are_not_cifar10(write_cifar: WriteCifar) -> None:
    """A missing class folder is counted."""
    import shutil

    root = write_cifar("folders")
    shutil.rmtree(root / "cifar10" / "test" / "ship")
    with pytest.raises(DataError, match=r"has 9 class folders; cifar10 has 10 classes"):
        load_dataset("cifar10", root)
