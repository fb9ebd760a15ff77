"""The crops: as large as the images, moved or enlarged by a sixteenth, and of nothing else."""

from __future__ import annotations

import pytest
import torch

from sicl.calibrate.sicl.questions import CROP, N_CROPS, crops
from sicl.errors import InputError


@pytest.mark.parametrize("size", [(4, 4), (8, 8), (32, 32), (32, 48), (7, 33)])
def test_crops_have_the_size_and_range_of_the_images(size: tuple[int, int]) -> None:
    """Also images that are not square, or smaller than a sixteenth can tell."""
    images = torch.rand(5, 3, *size, generator=torch.Generator().manual_seed(0))
    found = crops(images)
    assert len(found) == N_CROPS
    for crop in found:
        assert crop.shape == images.shape
        assert float(crop.min()) >= float(images.min())
        assert float(crop.max()) <= float(images.max())
        assert not torch.equal(crop, images)


def test_two_crops_are_moved_and_one_is_enlarged() -> None:
    """By a sixteenth of the side: pixel by pixel where nothing is interpolated."""
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    step = 32 // CROP
    upper, lower, larger = crops(images)
    assert torch.equal(upper[..., step:, step:], images[..., :-step, :-step])
    assert torch.equal(lower[..., :-step, :], images[..., step:, :])
    ramp = torch.linspace(0, 1, 32).expand(1, 1, 32, 32)
    slope = crops(ramp)[2][0, 0, 16].diff()[8:-8].mean()
    assert float(slope) == pytest.approx((32 - 2 * step) / 32 / 31, rel=0.02)
    assert float(larger.mean()) == pytest.approx(float(images.mean()), abs=0.05)


@pytest.mark.parametrize("shape", [(2, 16), (2, 3, 16), (2, 3, 3, 8), (2, 3, 8, 1)])
def test_other_input_is_one_sentence(shape: tuple[int, ...]) -> None:
    """With what to leave out."""
    with pytest.raises(InputError, match=r"N x C x H x W of at least 4 pixels, got shape .*leave"):
        crops(torch.rand(shape))
