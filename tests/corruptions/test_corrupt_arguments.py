"""What `corrupt` says about arguments it cannot use, and the frost folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from corruption_samples import random_images, read_sample
from PIL import Image

from sicl.corruptions import corrupt
from sicl.errors import DataError, InputError, OptionError, SiclError

IMAGES = random_images(2, 32, 32)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    """A typing error is named with what was probably meant."""
    with pytest.raises(OptionError, match=r"got 'gausian_noise'\. Did you mean 'gaussian_noise'"):
        corrupt(IMAGES, "gausian_noise")


@pytest.mark.parametrize("severity", [0, 6, -1, 2.5, True])
def test_a_severity_outside_one_to_five_is_refused(severity: Any) -> None:
    """The message names the allowed values and the given one."""
    with pytest.raises(OptionError, match="`severity` must be one of 1, 2, 3, 4, 5; got"):
        corrupt(IMAGES, "fog", severity=severity)


@pytest.mark.parametrize(
    "images",
    [
        IMAGES.astype(np.float32),
        IMAGES[0],
        IMAGES.transpose(0, 3, 1, 2),
        IMAGES[:, :4],
        [[1, 2]],
    ],
)
def test_images_of_the_wrong_kind_are_refused(images: Any) -> None:
    """Floats, single images, channels first, tiny images and lists are not what is asked for."""
    with pytest.raises(InputError, match="`images` must be"):
        corrupt(images, "fog")


def test_constants_have_known_names() -> None:
    """Only cifar, imagenet and auto exist."""
    with pytest.raises(OptionError, match="`constants` must be one of auto, cifar, imagenet"):
        corrupt(IMAGES, "fog", constants="mnist")


@pytest.mark.parametrize("indices", [np.arange(3), np.array([0.0, 1.0]), np.zeros((2, 1), np.int64)])
def test_indices_must_be_one_integer_an_image(indices: Any) -> None:
    """Wrong counts, types and shapes are refused."""
    with pytest.raises(InputError, match="`indices` must be 2 integers"):
        corrupt(IMAGES, "fog", indices=indices)


def test_indices_and_first_index_exclude_each_other() -> None:
    """Two answers to one question are one too many."""
    with pytest.raises(OptionError, match="`first_index` must be 0"):
        corrupt(IMAGES, "fog", indices=np.arange(2), first_index=7)


def test_frost_photographs_can_come_from_a_folder(tmp_path: Path) -> None:
    """A white photograph brightens every pixel to the published mix."""
    Image.new("RGB", (400, 300), (200, 200, 200)).save(tmp_path / "white.png")
    clean = read_sample("clean")[:3]
    frosty = corrupt(clean, "frost", severity=5, frost_folder=tmp_path)
    expected = np.minimum(clean * 0.75 + 200 * 0.45, 255)
    assert np.abs(frosty - expected).max() <= 1


def test_a_folder_without_photographs_is_refused(tmp_path: Path) -> None:
    """The message says what to do."""
    with pytest.raises(DataError, match=r"found none in .*leave it out"):
        corrupt(IMAGES, "frost", frost_folder=tmp_path)


def test_photographs_smaller_than_the_crop_are_refused(tmp_path: Path) -> None:
    """A picture of 100 px shrinks to 20 px, too small for 32."""
    Image.new("RGB", (100, 100)).save(tmp_path / "small.jpg")
    with pytest.raises(DataError, match="larger than 32 x 32"):
        corrupt(IMAGES, "frost", frost_folder=tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": "x"}, "`seed` must be an integer"),
        ({"seed": None}, "`seed` must be an integer"),
        ({"seed": 2**64}, "`seed` must be an integer"),
        ({"severity": torch.tensor([1, 2])}, "`severity` must be one of"),
        ({"severity": "5"}, "`severity` must be one of"),
        ({"name": ["fog"]}, "`name` must be one of"),
        ({"constants": np.zeros(3)}, "`constants` must be one of"),
        ({"first_index": 1.5}, "`first_index` must be an integer"),
        ({"first_index": 2**63 - 1}, "`first_index` must lie in"),
        ({"indices": [1, [2]]}, "`indices` must be 2 integers"),
        ({"indices": torch.arange(2, device="meta")}, "`indices` must be 2 integers"),
        ({"name": "frost", "frost_folder": "a\0b"}, "`frost_folder` must be a path"),
        (
            {"images": torch.zeros(2, 16, 16, 3, dtype=torch.uint8, device="meta")},
            "dense tensor with content",
        ),
        ({"images": torch.zeros(2, 16, 16, 3, dtype=torch.uint8).to_sparse()}, "dense tensor with content"),
    ],
)
def test_an_argument_of_another_kind_is_one_sentence(options: dict[str, object], message: str) -> None:
    """Types, ranges and layouts are checked before any pixel is touched."""
    chosen = {"images": np.zeros((2, 16, 16, 3), np.uint8), "name": "fog", **options}
    with pytest.raises(SiclError, match=message):
        corrupt(**chosen)
