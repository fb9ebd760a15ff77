"""The laws every corruption keeps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from corruption_samples import random_images, read_sample

from sicl.corruptions import CATEGORIES, CORRUPTIONS, VALIDATION_CORRUPTIONS, corrupt

EVERY = (*CORRUPTIONS, *VALIDATION_CORRUPTIONS)
FIXED = ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")
FIXED_TOO = (*FIXED, "gaussian_blur", "saturate")
GROWING = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "motion_blur",
    "zoom_blur",
    "contrast",
)
every_corruption = pytest.mark.parametrize("name", EVERY)


def test_there_are_fifteen_and_four_names_and_four_categories() -> None:
    """The names are the paper's, none twice, and the categories hold the fifteen in order."""
    assert len(CORRUPTIONS) == 15
    assert len(set(EVERY)) == 19
    assert tuple(name for names in CATEGORIES.values() for name in names) == CORRUPTIONS
    assert list(CATEGORIES) == ["noise", "blur", "weather", "digital"]


@every_corruption
def test_an_image_gets_the_same_result_in_any_batch(name: str) -> None:
    """Alone, in a shuffled subset or in a batch of several chunks: the bytes are the same."""
    images = np.concatenate([read_sample("clean")] * 7)[:203]
    for severity in (2, 5):
        together = corrupt(images, name, severity=severity, seed=3, first_index=1000)
        alone = corrupt(images[5:6], name, severity=severity, seed=3, first_index=1005)
        assert np.array_equal(together[5:6], alone)
        some = np.array([202, 0, 77, 171])
        subset = corrupt(images[some], name, severity=severity, seed=3, indices=some + 1000)
        assert np.array_equal(together[some], subset)


@every_corruption
def test_large_images_get_the_same_result_in_any_batch(name: str) -> None:
    """The same law for 224-px images and their constants."""
    images = random_images(3, 224, 224)
    together = corrupt(images, name, severity=3)
    assert np.array_equal(together[2:], corrupt(images[2:], name, severity=3, first_index=2))
    assert together.shape == images.shape
    assert not np.array_equal(together, images)


@every_corruption
def test_the_number_of_threads_changes_nothing(name: str) -> None:
    """Work split at odd places gives the same bytes."""
    images = read_sample("clean")[:29]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = corrupt(images, name)
        torch.set_num_threads(3)
        three = corrupt(images, name)
    finally:
        torch.set_num_threads(before)
    assert np.array_equal(one, three)


@every_corruption
def test_arrays_and_tensors_give_the_same_and_stay_untouched(name: str) -> None:
    """An array comes back as an array, a tensor as a tensor, and the input keeps its values."""
    array = read_sample("clean")[:4].copy()
    array.setflags(write=False)
    tensor = torch.tensor(array)
    from_array, from_tensor = corrupt(array, name), corrupt(tensor, name)
    assert isinstance(from_array, np.ndarray)
    assert isinstance(from_tensor, torch.Tensor)
    assert from_array.dtype == np.uint8
    assert from_tensor.dtype == torch.uint8
    assert np.array_equal(from_array, from_tensor.numpy())
    assert np.array_equal(tensor.numpy(), array)


@every_corruption
def test_the_seed_matters_exactly_for_random_corruptions(name: str) -> None:
    """Another seed, or another index, gives other noise; deterministic corruptions ignore both."""
    images = read_sample("clean")[:4]
    first = corrupt(images, name, seed=0)
    assert np.array_equal(first, corrupt(images, name, seed=1)) == (name in FIXED_TOO)
    assert np.array_equal(first, corrupt(images, name, first_index=50)) == (name in FIXED_TOO)


@every_corruption
@pytest.mark.parametrize("shape", [(8, 8), (40, 24), (65, 80)])
def test_any_shape_works_at_any_severity(name: str, shape: tuple[int, int]) -> None:
    """Tiny, wide and odd images keep their shape."""
    images = random_images(2, *shape)
    for severity in range(1, 6):
        assert corrupt(images, name, severity=severity).shape == images.shape


@pytest.mark.parametrize("name", GROWING)
def test_a_higher_severity_moves_the_image_further(name: str) -> None:
    """From severity to severity the mean change grows."""
    clean = read_sample("clean")
    changes = [np.abs(corrupt(clean, name, severity=s).astype(int) - clean).mean() for s in range(1, 6)]
    assert changes == sorted(changes)


@every_corruption
def test_no_images_give_no_images(name: str) -> None:
    """An empty batch stays empty."""
    assert corrupt(np.zeros((0, 32, 32, 3), np.uint8), name).shape == (0, 32, 32, 3)


def test_constants_follow_the_image_size_unless_named() -> None:
    """Up to 64 px the CIFAR-C constants, above the ImageNet-C ones."""
    small, large = random_images(2, 64, 64), random_images(2, 65, 65)
    cifar, imagenet = (corrupt(small, "contrast", constants=c) for c in ("cifar", "imagenet"))
    assert np.array_equal(corrupt(small, "contrast"), cifar)
    assert not np.array_equal(cifar, imagenet)
    assert np.array_equal(corrupt(large, "contrast"), corrupt(large, "contrast", constants="imagenet"))
