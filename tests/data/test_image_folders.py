"""ImageNet and other folders: listed by class, decoded when read, subsets by protocol."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torch import nn

from sicl.bench.run.shelf import require_classes
from sicl.data import load_dataset
from sicl.data.check import check_dataset
from sicl.data.dataset import UNLABELLED
from sicl.errors import DataError, OptionError
from sicl.models.preprocess import Preprocess

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


def test_pictures_without_class_folders_stay_unlabelled(tmp_path: Path) -> None:
    """Nobody said their class, so none is made up."""
    for index in range(3):
        Image.new("RGB", (20 + index, 16)).save(tmp_path / f"{index}.png")
    dataset = load_dataset(f"folder:{tmp_path}")
    assert dataset.images[np.arange(3)].shape == (3, 16, 16, 3)
    assert not dataset.labelled
    assert (dataset.labels == UNLABELLED).all()
    assert (dataset.n_classes, dataset.classes) == (0, None)
    assert not dataset.subset(np.array([1])).labelled
    with pytest.raises(OptionError, match="has no class folders, so nothing can be measured"):
        require_classes(nn.Linear(2, 3), dataset, "mine")


def test_numeric_class_names_sort_as_numbers(tmp_path: Path) -> None:
    """Class 10 comes after class 9; names that are not all numbers sort as text."""
    for name in ("10", "9", "0", "002"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "x.png")
    assert load_dataset(f"folder:{tmp_path}").classes == ("0", "002", "9", "10")
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "cat" / "x.png")
    assert load_dataset(f"folder:{tmp_path}").classes == ("0", "002", "10", "9", "cat")


def test_sizes_and_crop_come_from_the_model(tmp_path: Path) -> None:
    """A folder of pictures of many sizes is made ready as the model's `preprocess` says."""
    preprocess = Preprocess(size=24, resize=28, interpolation="bicubic")
    for index in range(3):
        pixels = np.random.default_rng(index).integers(0, 256, (40 + index, 50, 3), np.uint8)
        (tmp_path / "cat").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "cat" / f"{index}.png")
    plain = load_dataset(f"folder:{tmp_path}")
    dataset = plain.subset(np.array([2, 0])).prepared(preprocess)
    assert dataset.size == 24
    expected = preprocess.pixels(Image.open(tmp_path / "cat" / "2.png"))
    np.testing.assert_array_equal(dataset.images[np.array([0])][0], expected)
    assert dataset.fingerprint != plain.subset(np.array([2, 0])).fingerprint
    assert load_dataset("demo").prepared(preprocess).size == 32


def test_a_check_counts_what_a_folder_holds(tmp_path: Path) -> None:
    """`sicl data check folder:PATH` says how many pictures of which class there are."""
    for name, n in (("cat", 2), ("dog", 1)):
        (tmp_path / name).mkdir()
        for index in range(n):
            Image.new("RGB", (8, 8)).save(tmp_path / name / f"{index}.png")
    (finding,) = check_dataset(f"folder:{tmp_path}", deep=True)
    assert finding.ok
    assert finding.message == "3 images of 2 classes (cat 2, dog 1)."
    (tmp_path / "cat" / "0.png").write_bytes(b"no picture")
    (finding,) = check_dataset(f"folder:{tmp_path}", deep=True)
    assert not finding.ok


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    """Nothing to stream is an error, not an empty stream."""
    (tmp_path / "notes.txt").write_text("no pictures")
    with pytest.raises(DataError, match="has no images"):
        load_dataset(f"folder:{tmp_path}")
    with pytest.raises(DataError, match="is no folder"):
        load_dataset(f"folder:{tmp_path / 'absent'}")
