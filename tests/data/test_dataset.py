"""The data set object, the embedded demonstration data, and source data as tensors."""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np
import pytest
import torch

from sicl.data import Dataset, load_dataset, source_data
from sicl.data.images import Noise, Resized
from sicl.errors import DataError, OptionError


def test_the_demo_data_are_small_enough_to_ship() -> None:
    """Pictures and labels together stay under 3.4 MB."""
    folder = files("sicl.data") / "_embedded"
    assert sum(len(entry.read_bytes()) for entry in folder.iterdir()) < 3.4e6


def test_the_demo_splits_are_disjoint_and_whole() -> None:
    """1,500 images to stream, 400 to fit on, none in both, all classes in each."""
    test, held_out = load_dataset("demo"), load_dataset("demo", split="val")
    assert (len(test), len(held_out)) == (1500, 400)
    assert set(test.indices.tolist()).isdisjoint(held_out.indices.tolist())
    assert np.bincount(test.labels, minlength=10).min() >= 100
    assert np.bincount(held_out.labels, minlength=10).min() >= 20
    images = [test.images[np.arange(1500)], held_out.images[np.arange(400)]]
    assert not {image.tobytes() for image in images[0]} & {image.tobytes() for image in images[1]}


def test_the_demo_images_are_the_first_of_the_cifar10_test_set() -> None:
    """The first labels of the published test set are cat, ship, ship, airplane, frog."""
    dataset = load_dataset("demo")
    assert dataset.classes is not None
    assert [dataset.classes[label] for label in dataset.labels[:5]] == [
        "cat",
        "ship",
        "ship",
        "airplane",
        "frog",
    ]


def test_the_demo_has_no_training_images() -> None:
    """Asking for them says what to load instead."""
    with pytest.raises(OptionError, match="load cifar10 to train"):
        load_dataset("demo", split="train")


def test_provenance_goes_into_a_record() -> None:
    """It is plain JSON."""
    provenance = load_dataset("demo").provenance
    assert json.loads(json.dumps(provenance))["count"] == 1500


def test_source_data_are_floats_between_zero_and_one() -> None:
    """Tensors in the form that methods and calibrators take."""
    source = source_data(load_dataset("demo", split="val"), n=50)
    assert source.images.shape == (50, 3, 32, 32)
    assert source.images.dtype == torch.float32
    assert 0 <= float(source.images.min()) < 0.1 < 0.9 < float(source.images.max()) <= 1
    assert source.labels.dtype == torch.int64


def test_source_data_keep_image_and_label_together() -> None:
    """A drawn sample is one of the data set's, with its own label."""
    dataset = load_dataset("demo", split="val")
    source = source_data(dataset, n=20, seed=3)
    known = {image.tobytes(): label for image, label in zip(dataset.images[np.arange(400)], dataset.labels)}
    pixels = (source.images * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous().numpy()
    assert [known[image.tobytes()] for image in pixels] == source.labels.tolist()


def test_a_subset_is_corrupted_as_the_whole_would_be() -> None:
    """An image's corruption follows its published index, not its place in the subset."""
    dataset = load_dataset("demo")
    subset = dataset.subset(np.array([30, 10, 20]))
    whole = dataset.read(np.arange(40), "impulse_noise", severity=4)
    np.testing.assert_array_equal(subset.read(np.array([1, 2]), "impulse_noise", severity=4), whole[[10, 20]])


def test_subsets_have_fingerprints_of_their_own() -> None:
    """Other images, other cache keys."""
    dataset = load_dataset("demo")
    assert dataset.subset(np.arange(5)).fingerprint != dataset.subset(np.arange(6)).fingerprint
    assert dataset.subset(np.arange(5)).fingerprint == load_dataset("demo").subset(np.arange(5)).fingerprint


def test_a_wrong_number_of_labels_is_refused() -> None:
    """A data set made by hand is checked like a file."""
    with pytest.raises(DataError, match="`mine` has 3 images but 2 labels"):
        Dataset("mine", np.zeros((3, 8, 8, 3), np.uint8), np.zeros(2, np.int64))


def test_noise_is_the_same_in_any_order() -> None:
    """Each noise image depends on its own position alone."""
    noise = Noise(10, 8)
    np.testing.assert_array_equal(noise[np.array([3, 7])], noise[np.array([7, 3])][::-1])
    assert noise[np.array([3])].std() > 60


def test_resizing_keeps_what_already_fits() -> None:
    """Same size, same pixels; another size, that size."""
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), np.uint8)
    np.testing.assert_array_equal(Resized(images, 8)[np.array([2])], images[2:])
    assert Resized(images, 12)[np.array([0, 1])].shape == (2, 12, 12, 3)
