"""What single corruptions do to colours, shares and shapes."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
import torch
from corruption_samples import random_images
from scipy.ndimage import distance_transform_edt

from sicl.corruptions import corrupt
from sicl.corruptions._random import ImageDraws
from sicl.corruptions.spatter import _capped_distance, _edges, _equalised
from sicl.corruptions.weather import _plasma, procedural_textures


def flat(value: int, n: int = 60) -> np.ndarray:
    """Return `n` grey images of one value."""
    return np.full((n, 32, 32, 3), value, dtype=np.uint8)


def test_gaussian_noise_has_the_published_deviation() -> None:
    """A mid-grey image at severity 1: deviation 0.04 of the range, mean lowered by half a level."""
    noise = corrupt(flat(128), "gaussian_noise", severity=1).astype(float) - 127.5
    assert abs(noise.std() - 0.04 * 255) < 0.1
    assert abs(noise.mean()) < 0.1


@pytest.mark.parametrize("value", [10, 128, 200])
def test_shot_noise_has_poisson_mean_and_variance(value: int) -> None:
    """The variance of the scaled count is mean x 255 / rate."""
    noisy = corrupt(flat(value), "shot_noise", severity=1).astype(float) + 0.5
    assert abs(noisy.mean() - value) < 0.1
    assert abs(noisy.var() / (value * 255 / 500) - 1) < 0.05


def test_impulse_noise_flips_the_published_share_of_values() -> None:
    """7 % at severity 5, black as often as white, each channel on its own."""
    noisy = corrupt(flat(128), "impulse_noise")
    assert abs((noisy == 0).mean() - 0.035) < 0.002
    assert abs((noisy == 255).mean() - 0.035) < 0.002
    changed = noisy != 128
    assert changed.any(-1).mean() > 2 * changed.mean()


def test_speckle_noise_leaves_black_alone() -> None:
    """The noise is proportional to the value."""
    assert not corrupt(flat(0, 2), "speckle_noise").any()


@pytest.mark.parametrize(("name", "channel"), [("brightness", 2), ("saturate", 1)])
def test_colour_changes_are_those_of_hsv(name: str, channel: int) -> None:
    """Against the standard library's conversion, for random, grey and black pixels."""
    images = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), dtype=np.uint8)
    images[0, 0], images[0, 1] = 0, 77
    scale, offset = (1.0, 0.3) if name == "brightness" else (2.5, 0.2)
    expected = np.empty(images.shape)
    for place in np.ndindex(images.shape[:3]):
        hsv = list(colorsys.rgb_to_hsv(*(images[place] / 255)))
        hsv[channel] = min(max(hsv[channel] * scale + offset, 0), 1)
        expected[place] = np.array(colorsys.hsv_to_rgb(*hsv)) * 255
    ours = corrupt(images, name)
    assert np.abs(ours - np.floor(expected + 1e-4)).max() <= 1
    assert (ours != np.floor(expected + 1e-4)).mean() < 0.05


def test_contrast_shrinks_the_distance_to_each_channels_mean() -> None:
    """Half 0 and half 200 around 100: 15 % of the distance is left."""
    images = np.zeros((1, 32, 32, 3), dtype=np.uint8)
    images[:, :16] = 200
    assert np.array_equal(np.unique(corrupt(images, "contrast")), [85, 115])


def test_elastic_transform_keeps_a_flat_image() -> None:
    """Moving equal pixels changes nothing, at the edges either."""
    for severity in range(1, 6):
        assert np.array_equal(corrupt(flat(93, 3), "elastic_transform", severity=severity), flat(93, 3))


@pytest.mark.parametrize(
    "name", ["glass_blur", "defocus_blur", "motion_blur", "zoom_blur", "gaussian_blur", "pixelate"]
)
def test_blurs_keep_a_flat_image(name: str) -> None:
    """Averages of equal pixels are that pixel, at both sizes."""
    assert np.array_equal(corrupt(flat(93, 3), name), flat(93, 3))
    large = np.full((1, 224, 224, 3), 93, dtype=np.uint8)
    assert np.abs(corrupt(large, name).astype(int) - 93).max() <= 1


def test_fog_plasma_spans_zero_to_one_and_is_rougher_with_slower_decay() -> None:
    """Every map is scaled to its own range; a small decay leaves more fine structure."""
    rough, soft = (
        _plasma(32, decay, ImageDraws(0, "p", np.arange(20), torch.device("cpu"))) for decay in (1.4, 3.0)
    )
    for plasma in (rough, soft):
        assert torch.equal(plasma.amin((1, 2)), torch.zeros(20))
        assert torch.equal(plasma.amax((1, 2)), torch.ones(20))
    assert rough.diff(dim=1).abs().mean() > 2 * soft.diff(dim=1).abs().mean()


def test_frost_textures_are_five_different_colours() -> None:
    """The generated textures differ in brightness and tint, and shrinking takes every fifth pixel."""
    full, small = procedural_textures(), procedural_textures(5)
    means = torch.stack([part.float().mean(0) for part in torch.split(full.pixels, 960 * 960)])
    assert torch.pdist(means).min() > 10
    assert small.shapes == ((192, 192),) * 5
    assert torch.equal(small.pixels[0], full.pixels[2 * 960 + 2])


def test_snow_only_brightens() -> None:
    """Flakes and whitening never darken a pixel by more than the dropped fraction."""
    images = random_images(20, 32, 32)
    assert (corrupt(images, "snow").astype(int) >= images.astype(int) - 1).all()


def test_water_brightens_and_mud_browns() -> None:
    """Severities 1 to 3 add light; 4 and 5 pull towards the colour of mud."""
    images = random_images(20, 64, 64)
    wet, muddy = (corrupt(images, "spatter", severity=s).astype(int) - images for s in (2, 5))
    assert wet.min() >= 0
    assert wet.max() > 50
    assert muddy.mean() < -1
    covered = corrupt(flat(255, 4), "spatter", severity=5)
    assert covered.min(axis=(0, 1, 2)).tolist() <= [110, 90, 70]


def test_chamfer_distance_is_near_the_euclidean_one() -> None:
    """Within 5 % of scipy's exact transform, capped at 20; without edges it is 20 everywhere."""
    edges = torch.zeros(2, 64, 64, dtype=torch.bool)
    edges[0, 10, 12] = edges[0, 40, 50] = True
    distance = _capped_distance(edges).numpy()
    exact = np.minimum(distance_transform_edt(~edges[0].numpy()), 20)
    assert np.abs(distance[0] - exact).max() < 0.05 * 20
    assert (distance[1] == 20).all()


def test_edges_outline_a_square() -> None:
    """A bright square gives a closed thin outline and nothing inside or far outside."""
    planes = torch.zeros(1, 32, 32)
    planes[:, 8:24, 8:24] = 180
    found = _edges(planes)[0]
    assert 50 <= int(found.sum()) <= 70
    assert not found[10:22, 10:22].any()
    assert not found[:6].any()


def test_equalising_spreads_levels_over_the_whole_range() -> None:
    """The lowest level goes to 0 and the highest to 255; a constant plane stays."""
    planes = torch.stack([torch.arange(64.0).reshape(8, 8) + 50, torch.full((8, 8), 20.0)])
    spread = _equalised(planes)
    assert (float(spread[0].min()), float(spread[0].max())) == (0.0, 255.0)
    assert bool((spread[1] == 20).all())
