"""ImageNet and other folders: listed by class, decoded when read, subsets by protocol."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sicl.data import load_dataset
from sicl.errors import DataError, OptionError

Write = Callable[..., Path]


def test_imagenet_images_are_centre_crops_of_224_pixels(write_imagenet: Write) -> None:
    """Whatever a file's size, a 224-pixel image comes out."""
    dataset = load_dataset("imagenet", write_imagenet())
    assert dataset.images.shape == (21, 224, 224, 3)
    assert dataset.images[np.array([20, 0])].shape == (2, 224, 224, 3)
    assert dataset.classes == ("n01", "n02", "n03")


def test_an_image_of_the_right_size_is_not_resampled(tmp_path: Path) -> None:
    """Pixels of a lossless 224-pixel file come through unchanged."""
    pixels = np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8)
    (tmp_path / "imagenet" / "val" / "n01").mkdir(parents=True)
    Image.fromarray(pixels).save(tmp_path / "imagenet" / "val" / "n01" / "a.png")
    np.testing.assert_array_equal(load_dataset("imagenet", tmp_path).images[np.array([0])][0], pixels)


@pytest.mark.parametrize(("protocol", "per_class"), [("50k", 7), ("5k", 5), ("1k", 1), ("per-class-2", 2)])
def test_protocols_take_the_first_of_each_class(protocol: str, per_class: int, write_imagenet: Write) -> None:
    """A named subset has as many of every class."""
    dataset = load_dataset(f"imagenet:{protocol}", write_imagenet())
    assert np.bincount(dataset.labels).tolist() == [per_class] * 3
    assert dataset.provenance["protocol"] == protocol


def test_a_list_of_files_is_a_protocol(write_imagenet: Write, tmp_path: Path) -> None:
    """A published list can be used as it is, in its order."""
    root = write_imagenet()
    listing = tmp_path / "list.txt"
    listing.write_text("n02/val_n02_003.JPEG\nn01/val_n01_000.JPEG\n")
    assert load_dataset(f"imagenet:{listing}", root).labels.tolist() == [1, 0]
    listing.write_text("n02/other.JPEG\n")
    with pytest.raises(DataError, match=r"lists 'n02/other.JPEG', which is not there \(1 of 1 are not\)"):
        load_dataset(f"imagenet:{listing}", root)


def test_an_unknown_protocol_lists_the_known(write_imagenet: Write) -> None:
    """The three names and the two forms are told."""
    with pytest.raises(OptionError, match="`protocol` must be one of 50k, 5k, 1k, per-class-N or a file"):
        load_dataset("imagenet:500", write_imagenet())


def test_imagenet_validation_comes_from_its_training_images(write_imagenet: Write) -> None:
    """Every tenth training file, none of the published validation files."""
    dataset = load_dataset("imagenet", write_imagenet(), "val")
    assert [path.name for path in dataset.images.paths] == [  # type: ignore[attr-defined]
        f"train_{group}_009.JPEG" for group in ("n01", "n02", "n03")
    ]


def test_imagenet_c_reads_the_severity_folder(tmp_path: Path) -> None:
    """`<corruption>/<severity>/<class>/<file>`, each severity its own pictures."""
    for severity in (1, 5):
        for group in ("n01", "n02"):
            folder = tmp_path / "ImageNet-C" / "fog" / str(severity) / group
            folder.mkdir(parents=True)
            Image.new("RGB", (224, 224), (severity * 40, 0, 0)).save(folder / "x.png")
    dataset = load_dataset("imagenet-c", tmp_path)
    assert dataset.labels.tolist() == [0, 1]
    assert dataset.read(np.array([1]), "fog", severity=5)[0, 0, 0].tolist() == [200, 0, 0]
    with pytest.raises(DataError, match=r"frog/5` is missing; .* has fog.*Did you mean 'fog'"):
        dataset.read(np.array([0]), "frog", severity=5)


def test_imagenet_c_is_made_from_clean_images_when_absent(write_imagenet: Write) -> None:
    """The clean validation set is enough to stream corruptions."""
    dataset = load_dataset("imagenet-c:1k", write_imagenet())
    clean, foggy = dataset.read(np.array([0])), dataset.read(np.array([0]), "fog")
    assert foggy.shape == clean.shape == (1, 224, 224, 3)
    assert np.abs(foggy.astype(int) - clean).mean() > 5


def test_missing_imagenet_says_who_has_it(tmp_path: Path) -> None:
    """It cannot be downloaded freely; the message says so."""
    with pytest.raises(DataError, match=r"image-net\.org"):
        load_dataset("imagenet", tmp_path)


def test_a_damaged_picture_is_named_when_read(write_imagenet: Write) -> None:
    """The file, not the batch, is blamed."""
    root = write_imagenet()
    path = root / "imagenet" / "val" / "n01" / "val_n01_002.JPEG"
    path.write_bytes(path.read_bytes()[:400])
    dataset = load_dataset("imagenet", root)
    with pytest.raises(DataError, match=r"val_n01_002.JPEG` is damaged"):
        dataset.images[np.arange(21)]


def test_any_folder_is_a_data_set(tmp_path: Path) -> None:
    """Pictures without classes are one class, at the first one's size."""
    for index in range(3):
        Image.new("RGB", (20 + index, 16)).save(tmp_path / f"{index}.png")
    dataset = load_dataset(f"folder:{tmp_path}")
    assert dataset.images[np.arange(3)].shape == (3, 16, 16, 3)
    assert dataset.labels.tolist() == [0, 0, 0]


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    """Nothing to stream is an error, not an empty stream."""
    (tmp_path / "notes.txt").write_text("no pictures")
    with pytest.raises(DataError, match="has no images"):
        load_dataset(f"folder:{tmp_path}")
    with pytest.raises(DataError, match="is no folder"):
        load_dataset(f"folder:{tmp_path / 'absent'}")
