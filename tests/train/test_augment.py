"""Batch augmentation: each operation against what it says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sicl.train import TrainSpec
from sicl.train.augment import (
    Mix,
    apply_mix,
    augment,
    crop_and_flip,
    cut_out,
    draw_mix,
    jitter_colour,
    pad_images,
    to_float,
    warp,
)


def _generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _images(n: int = 6, size: int = 8) -> torch.Tensor:
    return torch.randint(1, 256, (n, size, size, 3), generator=_generator(3), dtype=torch.uint8)


def test_every_crop_is_a_window_of_its_padded_image_or_of_its_mirror() -> None:
    """The gather takes a whole window at one offset, of the right image, and all offsets occur."""
    images = _images()
    padded = pad_images(images, 1)
    index = torch.arange(6).repeat(40)
    crops = crop_and_flip(padded, index, size=(8, 8), flip=True, generator=_generator())
    kinds = set()
    for source, crop in zip(index.tolist(), crops):
        windows = {
            (y, x, mirrored): window.flip(1) if mirrored else window
            for y in range(3)
            for x in range(3)
            for mirrored in (False, True)
            for window in (padded[source, y : y + 8, x : x + 8],)
        }
        found = [kind for kind, window in windows.items() if torch.equal(crop, window)]
        assert len(found) == 1
        kinds.add(found[0])
    assert len(kinds) == 18


def test_without_padding_and_flip_nothing_changes() -> None:
    """The plain spec returns the images themselves, as floats."""
    images = _images()
    spec = TrainSpec(crop_padding=0, flip=False)
    out = augment(images, torch.tensor([4, 1]), size=(8, 8), spec=spec, generator=_generator())
    torch.testing.assert_close(out, images[[4, 1]].permute(0, 3, 1, 2) / 255)


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_layout_is_the_one_asked_for(channels_last: bool) -> None:
    """Values are the same in both layouts."""
    out = to_float(_images(), channels_last=channels_last)
    assert out.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    torch.testing.assert_close(out, _images().permute(0, 3, 1, 2) / 255)


def test_strength_zero_is_the_identity() -> None:
    """The warp's grid and the colour's factors are exact at no strength."""
    images = to_float(_images(), channels_last=False)
    torch.testing.assert_close(warp(images, 0.0, _generator()), images, atol=1e-5, rtol=0)
    torch.testing.assert_close(jitter_colour(images, 0.0, _generator()), images, atol=1e-6, rtol=0)


def test_colours_stay_in_range_and_differ_by_image() -> None:
    """Each sample has its own factors."""
    images = to_float(_images(1), channels_last=False).expand(8, -1, -1, -1)
    out = jitter_colour(images, 0.9, _generator())
    assert out.min() >= 0
    assert out.max() <= 1
    assert len({round(float(image.mean()), 4) for image in out}) == 8


def test_the_hole_is_grey_and_at_most_its_side() -> None:
    """Only a square becomes 0.5; everything else is kept."""
    images = to_float(_images(50, 16), channels_last=False)
    hole = (cut_out(images, 6, _generator()) != images).any(1)
    assert hole.flatten(1).sum(1).max() <= 36
    assert hole.flatten(1).any(1).all()
    assert (cut_out(images, 6, _generator())[hole[:, None].expand_as(images)] == 0.5).all()


def test_the_share_of_a_cut_mix_is_its_area() -> None:
    """The loss weights match the pixels that stay; Mixup shares lie in [0, 1]."""
    rng = np.random.default_rng(0)
    mixes = [draw_mix(0.5, (8, 8), rng) for _ in range(400)]
    drawn = [mix for mix in mixes if mix is not None]
    assert 150 < len(drawn) < 250
    assert {mix.box is None for mix in drawn} == {True, False}
    zeros = torch.zeros(2, 3, 8, 8)
    zeros[1] = 1.0
    for mix in drawn:
        assert float(apply_mix(zeros, mix)[1].mean()) == pytest.approx(mix.share, abs=1e-5)
        assert float(apply_mix(zeros, mix)[0].mean()) == pytest.approx(1 - mix.share, abs=1e-5)


def test_mixing_leaves_the_batch_itself_alone() -> None:
    """The caller's images are not written to."""
    images = torch.rand(2, 3, 8, 8, generator=_generator())
    before = images.clone()
    apply_mix(images, Mix(share=0.75, box=(0, 4, 0, 4)))
    assert torch.equal(images, before)
