"""Our corruptions against images the data set's authors' generator made (severity 5, 32 px)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from corruption_samples import read_sample
from scipy.ndimage import uniform_filter

from sicl.corruptions import CORRUPTIONS, corrupt
from sicl.corruptions._filters import motion

DETERMINISTIC = ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")
RANDOM = tuple(name for name in CORRUPTIONS if name not in DETERMINISTIC)


def image_statistics(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Return 3 x N: mean, standard deviation, energy of what a 3 x 3 box filter takes away."""
    pixels = images.astype(np.float64)
    fine = pixels - uniform_filter(pixels, (1, 3, 3, 1), mode="nearest")
    return np.stack([pixels.mean((1, 2, 3)), pixels.std((1, 2, 3)), (fine**2).mean((1, 2, 3))])


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_corruptions_equal_the_reference_within_two_grey_levels(name: str) -> None:
    """The mean absolute difference stays under 2; measured, it is under 0.02."""
    ours, theirs = corrupt(read_sample("clean"), name), read_sample(name)
    assert np.abs(ours.astype(int) - theirs).mean() < (2 if name == "jpeg_compression" else 0.05)


@pytest.mark.parametrize("name", RANDOM)
def test_random_corruptions_have_the_reference_statistics_within_a_tenth(name: str) -> None:
    """Mean, deviation and fine energy of an image agree on average; six draws of ours against one of theirs."""
    clean = read_sample("clean")
    ours = np.mean([image_statistics(corrupt(clean, name, seed=seed)).mean(1) for seed in range(6)], axis=0)
    theirs = image_statistics(read_sample(name)).mean(1)
    assert np.abs(ours / theirs - 1).max() < 0.10


def test_motion_blur_at_the_right_angle_is_the_reference_image() -> None:
    """For each sample there is an angle at which our blur is theirs, edges included."""
    angles = np.arange(-45, 45, 0.5)
    for clean, theirs in zip(read_sample("clean")[:6], read_sample("motion_blur")):
        tries = motion(torch.from_numpy(clean).expand(len(angles), -1, -1, -1), 9, 2.5, angles).numpy()
        assert np.abs(tries - theirs).mean((1, 2, 3)).min() < 0.5
