"""The filters against scipy, Pillow and plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from corruption_samples import random_images
from PIL import Image
from scipy import ndimage

from sicl.corruptions._filters import (
    bilinear,
    border,
    box_resize,
    centre_zoom,
    defocus,
    motion,
    smooth,
)
from sicl.corruptions.blur import _displaced

IMAGES = random_images(2, 48, 48)


@pytest.mark.parametrize(("mode", "scipy_mode"), [("nearest", "nearest"), ("reflect", "reflect")])
@pytest.mark.parametrize("sigma", [0.05, 0.4, 1.5, 20.0])
def test_smooth_is_scipys_gaussian_filter(sigma: float, mode: str, scipy_mode: str) -> None:
    """The same radius, weights and edges, to a hundredth of a grey level."""
    ours = smooth(torch.from_numpy(IMAGES), sigma, truncate=3.0, mode=mode).numpy()
    theirs = ndimage.gaussian_filter(
        IMAGES.astype(float), (0, sigma, sigma, 0), truncate=3.0, mode=scipy_mode
    )
    assert np.abs(ours - theirs).max() < 0.02


def test_smooth_keeps_a_constant_image_exactly() -> None:
    """The rounded weights still sum to one."""
    flat = torch.full((1, 32, 32, 3), 201, dtype=torch.uint8)
    assert torch.equal(smooth(flat, 1.3), flat.double())


@pytest.mark.parametrize(("radius", "alias_sigma"), [(0.4, 0.5), (1.5, 0.1), (3, 0.1), (10, 0.5)])
def test_defocus_is_a_correlation_with_a_smoothed_disk(radius: float, alias_sigma: float) -> None:
    """The quarter-kernel short cut gives what a full two-dimensional correlation gives."""
    reach, taps = (8, 1) if radius <= 8 else (10, 2)
    y, x = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    disk = (x**2 + y**2 <= radius**2).astype(float)
    line = np.exp(-0.5 * (np.arange(-taps, taps + 1) / alias_sigma) ** 2)
    square = np.outer(line, line) / line.sum() ** 2
    kernel = ndimage.correlate(disk / disk.sum(), square, mode="mirror")
    theirs = ndimage.correlate(IMAGES.astype(float), kernel[None, :, :, None], mode="mirror")
    ours = defocus(torch.from_numpy(IMAGES), radius, alias_sigma).numpy()
    assert np.abs(ours - theirs).max() < 0.01


@pytest.mark.parametrize("factor", [1.0, 1.07, 1.25, 2.25])
def test_centre_zoom_is_scipys_linear_zoom_of_the_centre(factor: float) -> None:
    """Crop, stretch corner to corner, trim."""
    crop = math.ceil(48 / factor)
    top = (48 - crop) // 2
    part = IMAGES[0, top : top + crop, top : top + crop].astype(float)
    theirs = ndimage.zoom(part, (factor, factor, 1), order=1)
    trim = (theirs.shape[0] - 48) // 2
    ours = centre_zoom(torch.from_numpy(IMAGES).float(), factor)[0].numpy()
    assert np.abs(ours - theirs[trim : trim + 48, trim : trim + 48]).max() < 0.01


@pytest.mark.parametrize("size", [(31, 20), (12, 12), (48, 48), (96, 60)])
def test_box_resize_is_pillows(size: tuple[int, int]) -> None:
    """Down and up, to the last bit."""
    ours = box_resize(torch.from_numpy(IMAGES), *size).numpy()
    for image, mine in zip(IMAGES, ours):
        theirs = np.asarray(Image.fromarray(image).resize((size[1], size[0]), Image.Resampling.BOX))
        assert np.array_equal(mine, theirs)


def test_motion_is_a_half_gaussian_along_the_angle() -> None:
    """A plain loop over pixels and taps gives the same, for images at different angles in one batch."""
    angles = np.array([30.0, -100.0])
    ours = motion(torch.from_numpy(IMAGES), 3, 2.0, angles).numpy()
    weights = np.exp(-0.5 * (np.arange(7) / 2.0) ** 2)
    weights /= weights.sum()
    for image, angle, mine in zip(IMAGES, np.deg2rad(angles), ours):
        theirs = np.zeros(image.shape)
        for tap, weight in enumerate(weights):
            rows = np.clip(np.arange(48) + math.ceil(tap * np.sin(angle) - 0.5), 0, 47)
            columns = np.clip(np.arange(48) + math.ceil(tap * np.cos(angle) - 0.5), 0, 47)
            theirs += weight * image[rows][:, columns]
        assert np.abs(mine - np.floor(theirs + 1e-3)).max() <= 1
        assert np.abs(mine - np.floor(theirs + 1e-3)).mean() < 0.01


@pytest.mark.parametrize("mode", ["reflect", "mirror"])
def test_bilinear_is_scipys_map_coordinates(mode: str) -> None:
    """Places far outside the image included."""
    rng = np.random.default_rng(0)
    rows, columns = rng.uniform(-60, 110, (2, 2, 48, 48)).astype(np.float32)
    ours = bilinear(torch.from_numpy(IMAGES).float(), torch.from_numpy(rows), torch.from_numpy(columns), mode)
    for n in range(2):
        for channel in range(3):
            plane = IMAGES[n, :, :, channel].astype(float)
            theirs = ndimage.map_coordinates(plane, [rows[n], columns[n]], order=1, mode=mode)
            assert np.abs(ours[n, :, :, channel].numpy() - theirs).max() < 0.01


@pytest.mark.parametrize("mode", ["nearest", "reflect", "mirror"])
def test_border_maps_indices_as_numpy_pads(mode: str) -> None:
    """numpy's edge, symmetric and reflect are our nearest, reflect and mirror."""
    numpy_mode = {"nearest": "edge", "reflect": "symmetric", "mirror": "reflect"}[mode]
    assert np.array_equal(border(torch.arange(-20, 27), 7, mode), np.pad(np.arange(7), 20, mode=numpy_mode))


class _FixedDraws:
    """Stands in for `Draws` with known shifts."""

    def __init__(self, shifts: torch.Tensor) -> None:
        self.shifts = shifts

    def __len__(self) -> int:
        return len(self.shifts)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        """Return the known shifts."""
        assert self.shifts.shape[1:] == shape
        return self.shifts


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_displacement_is_the_sequential_copy_loop(reach: int) -> None:
    """Pointer doubling gives what visiting pixels one by one from the last to the first gives."""
    side = 20
    inner = range(side - reach, reach, -1)
    shifts = torch.randint(
        -reach, reach, (2, 2, len(inner), len(inner)), generator=torch.Generator().manual_seed(0)
    )
    ours = _displaced(side, side, reach, _FixedDraws(shifts))  # type: ignore[arg-type]
    for n in range(2):
        names = np.arange(side * side).reshape(side, side)
        for row in inner:
            for column in inner:
                dy, dx = shifts[n, :, row - reach - 1, column - reach - 1].tolist()
                names[row, column] = names[row + dy, column + dx]
        assert np.array_equal(ours[n].numpy(), names.reshape(-1))
