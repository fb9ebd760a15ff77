"""The crop and the repairs: as large as the images, and made of nothing else."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from sicl.calibrate.sicl.questions import CROP, N_REPAIRS, cropped, repairs
from sicl.errors import InputError


@pytest.mark.parametrize("size", [(4, 4), (8, 8), (32, 32), (32, 48), (7, 33)])
def test_views_have_the_size_and_range_of_the_images(size: tuple[int, int]) -> None:
    """Also images that are not square, or smaller than a sixteenth can tell."""
    images = torch.rand(5, 3, *size, generator=torch.Generator().manual_seed(0))
    repaired = repairs(images)
    assert len(repaired) == N_REPAIRS
    low, high = images.aminmax()
    for view, darkest, brightest in ((cropped(images), low, high), *((view, 0.0, 1.0) for view in repaired)):
        assert view.shape == images.shape
        assert float(view.min()) >= float(darkest)
        assert float(view.max()) <= float(brightest)
        assert not torch.equal(view, images)


def test_a_crop_is_enlarged() -> None:
    """Without a sixteenth of the side on each: the middle stays where it is, and all else moves outwards."""
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    step = 32 // CROP
    ramp = torch.linspace(0, 1, 32).expand(1, 1, 32, 32)
    for across in (cropped(ramp)[0, 0, 16], cropped(ramp.mT)[0, 0, :, 16]):
        assert float(across.diff()[8:-8].mean()) == pytest.approx((32 - 2 * step) / 32 / 31, rel=0.02)
        assert float(across.mean()) == pytest.approx(0.5, abs=1e-3)
    assert float(cropped(images).mean()) == pytest.approx(float(images.mean()), abs=0.05)


def test_repairs_take_detail_away_or_bring_it_out() -> None:
    """Stripes of one pixel are flattened, or stretched to black and white; what is grey stays grey, or finite."""
    stripes = 0.5 + 0.1 * (torch.arange(16) % 2 * 2 - 1).float().expand(1, 3, 16, 16)
    soft, sharp = (view[..., 4:-4, 4:-4].std() for view in repairs(torch.cat([stripes, stripes])))
    assert float(soft) < 1e-6
    assert float(sharp) == pytest.approx(0.5, rel=0.02)
    grey = torch.full((1, 3, 16, 16), 0.3)
    smooth, stretched = repairs(grey)
    torch.testing.assert_close(smooth, grey)
    assert bool(stretched.isfinite().all())


def test_a_sharpened_picture_is_the_stretched_one_less_what_softens_it() -> None:
    """Written out: stretched first, softened afterwards, by weights 1 2 1 both ways; also beyond 0 to 1."""
    for images in (torch.rand(4, 3, 12, 16), 3 * torch.randn(4, 3, 12, 16)):
        low, high = images.amin().clamp_max(0.0), images.amax().clamp_min(1.0)
        darkest, brightest = images.amin((1, 2, 3), keepdim=True), images.amax((1, 2, 3), keepdim=True)
        stretched = low + (high - low) * (images - darkest) / (brightest - darkest)
        weights = (
            torch.tensor([1.0, 2.0, 1.0]).outer(torch.tensor([1.0, 2.0, 1.0])).div(16).expand(3, 1, 3, 3)
        )
        softened = [
            F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), weights, groups=3) for x in (images, stretched)
        ]
        soft, sharp = repairs(images)
        torch.testing.assert_close(soft, softened[0])
        torch.testing.assert_close(sharp, (2 * stretched - softened[1]).clamp(low, high), atol=1e-5, rtol=0)


def test_a_hazy_picture_is_repaired_to_what_the_clear_one_is() -> None:
    """Contrast and brightness go; detail is doubled all the same."""
    clear = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    hazy = 0.6 + 0.2 * clear
    torch.testing.assert_close(repairs(hazy)[1], repairs(clear)[1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("shape", [(2, 16), (2, 3, 16), (2, 3, 3, 8), (2, 3, 8, 1)])
def test_other_input_is_one_sentence(shape: tuple[int, ...]) -> None:
    """With what to leave out."""
    with pytest.raises(InputError, match=r"N x C x H x W of at least 4 pixels, got shape .*leave"):
        cropped(torch.rand(shape))
    with pytest.raises(InputError, match="of at least 4 pixels"):
        repairs(torch.rand(shape))
