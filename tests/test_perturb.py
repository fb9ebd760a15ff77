"""Perturbations against their formulas, written out slowly."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sicl import perturb
from sicl.errors import InputError


def noise(*size: int, seed: int = 0) -> Tensor:
    """Normal values from a seed."""
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


SHAPES = [(5, 3, 4, 6), (5, 7, 3)]


@pytest.mark.parametrize("shape", SHAPES)
def test_style_statistics_are_per_sample_and_channel(shape: tuple[int, ...]) -> None:
    """Over space for maps, over tokens for tokens; the spread is the biased one."""
    features = noise(*shape)
    mean, std = perturb.style_statistics(features)
    flat = features.flatten(2) if features.ndim == 4 else features.transpose(1, 2)
    assert torch.allclose(mean, flat.mean(-1), atol=1e-6)
    assert torch.allclose(std, flat.std(-1, correction=0), atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_style_map_gives_the_features_the_perturbed_statistics(shape: tuple[int, ...]) -> None:
    """What the paper writes as whitening and colouring is one affine map."""
    features = noise(*shape)
    mean, std = perturb.style_statistics(features)
    more_mean, more_std = 0.3 * noise(4, *mean.shape, seed=1), 0.1 * noise(4, *std.shape, seed=2)
    made = perturb.apply_map(features, *perturb.style_map(mean, std, more_mean, more_std))
    for variant, (m, s) in enumerate(zip(more_mean, more_std)):
        new_mean, new_std = perturb.style_statistics(made.view(4, *shape)[variant])
        assert torch.allclose(new_mean, mean + m, atol=1e-4)
        assert torch.allclose(new_std, (std + s).abs(), atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_no_noise_changes_nothing(shape: tuple[int, ...]) -> None:
    """Zero noise is the identity, for style and for content."""
    features = noise(*shape)
    mean, std = perturb.style_statistics(features)
    zero = torch.zeros(2, *mean.shape)
    again = perturb.apply_map(features, *perturb.style_map(mean, std, zero, zero))
    assert torch.allclose(again, features.repeat(2, *[1] * (features.ndim - 1)), atol=1e-4)
    again = perturb.content_variants(features, std, torch.zeros(2, *shape))
    assert torch.equal(again, features.repeat(2, *[1] * (features.ndim - 1)))


@pytest.mark.parametrize("shape", SHAPES)
def test_variants_are_the_same_where_they_are_written_to_and_carry_gradients_where_not(
    shape: tuple[int, ...],
) -> None:
    """A part of a larger memory is as good as memory of their own."""
    features = noise(*shape).requires_grad_()
    mean, std = (value.detach() for value in perturb.style_statistics(features))
    scale, shift = 1 + 0.1 * noise(4, *mean.shape, seed=1), noise(4, *std.shape, seed=2)
    kinds = {
        "style": lambda f, out: perturb.apply_map(f, scale, shift, out=out),
        "content": lambda f, out: perturb.content_variants(f, std, noise(4, *shape, seed=3), out=out),
    }
    for make in kinds.values():
        made = make(features, None)
        made.sum().backward()
        assert features.grad is not None
        assert bool(features.grad.isfinite().all())
        whole = perturb.room_for(features, 6).zero_()
        place = whole[shape[0] : 5 * shape[0]]
        assert make(features.detach(), place) is place
        assert torch.equal(place, made.detach())
        assert not whole[: shape[0]].any()
        assert not whole[5 * shape[0] :].any()


def test_a_dead_channel_stays_finite() -> None:
    """A channel without spread must not divide by zero."""
    features = torch.zeros(2, 3, 4, 4)
    mean, std = perturb.style_statistics(features)
    made = perturb.apply_map(features, *perturb.style_map(mean, std, noise(2, 2, 3), noise(2, 2, 3)))
    assert bool(made.isfinite().all())


@pytest.mark.parametrize("shape", SHAPES)
def test_content_noise_is_added_in_units_of_the_channels_spread(shape: tuple[int, ...]) -> None:
    """f + std e, value by value."""
    features, e = noise(*shape), noise(3, *shape, seed=1)
    _, std = perturb.style_statistics(features)
    spread = std[:, :, None, None] if features.ndim == 4 else std[:, None]
    expected = (features + spread * e).flatten(0, 1)
    assert torch.allclose(perturb.content_variants(features, std, e), expected, atol=1e-6)


def test_mixstyle_with_itself_changes_nothing_and_with_another_takes_its_style() -> None:
    """Share 1 keeps the style, share 0 swaps it."""
    features = noise(4, 3, 5, 5) * torch.arange(1, 5).view(4, 1, 1, 1)
    mean, std = perturb.style_statistics(features)
    partner = torch.tensor([[1, 0, 3, 2]])
    kept = perturb.apply_map(features, *perturb.mixstyle_map(mean, std, partner, torch.ones(1, 4)))
    assert torch.allclose(kept, features, atol=1e-4)
    swapped = perturb.apply_map(features, *perturb.mixstyle_map(mean, std, partner, torch.zeros(1, 4)))
    new_mean, new_std = perturb.style_statistics(swapped)
    assert torch.allclose(new_mean, mean[partner[0]], atol=1e-4)
    assert torch.allclose(new_std, std[partner[0]], atol=1e-3)


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 6), channels=st.integers(1, 5), side=st.integers(1, 6), tokens=st.booleans())
def test_windows_are_views_of_distinct_values(rows: int, channels: int, side: int, tokens: bool) -> None:
    """No value twice in one sample's noise, and no two samples share one at the same place."""
    features = torch.zeros(rows, side, channels) if tokens else torch.zeros(rows, channels, side, side)
    length = perturb.block_length(features)
    blocks = torch.arange(2 * length).view(2, length)
    cut = perturb.windows(blocks, features)
    assert cut.shape == (2, *features.shape)
    assert cut.data_ptr() == blocks.data_ptr()
    for row in cut.flatten(0, 1):
        assert len(row.unique()) == row.numel()
    same_place = cut.flatten(0, 1).flatten(1)
    assert all(len(place.unique()) == len(place) for place in same_place.T)


def test_windows_of_some_rows_are_those_of_all() -> None:
    """Choosing samples does not change their noise."""
    features = torch.zeros(5, 3, 4, 4)
    blocks = noise(2, perturb.block_length(features))
    rows = torch.tensor([4, 1])
    assert torch.equal(
        perturb.windows(blocks, features[rows], rows), perturb.windows(blocks, features)[:, rows]
    )


def test_variants_keep_the_dtype_and_come_channels_last() -> None:
    """What goes into convolutions is made in the layout and the dtype they want."""
    features = noise(3, 4, 5, 5).bfloat16()
    made = perturb.apply_map(features, noise(2, 3, 4), noise(2, 3, 4))
    assert made.dtype == torch.bfloat16
    assert made.is_contiguous(memory_format=torch.channels_last)


def test_flat_features_are_refused() -> None:
    """Style needs space or tokens."""
    with pytest.raises(InputError, match="name another `layer`"):
        perturb.style_statistics(torch.zeros(3, 4))


def test_spread_is_over_the_batch() -> None:
    """Per channel, or one number over all."""
    means = noise(6, 3)
    assert torch.allclose(perturb.spread(means), means.std(0, correction=0))
    assert torch.allclose(perturb.spread(means, per="global"), means.std(correction=0))


def test_dropout_keeps_the_expected_value() -> None:
    """Kept values are scaled by 1 / (1 - p)."""
    features = torch.ones(2, 3, 4, 4)
    keep = torch.arange(2 * 2 * 48).view(2, 2, 3, 4, 4) % 2 == 0
    made = perturb.dropout_variants(features, keep, 0.5)
    assert torch.equal(made, 2.0 * keep.float().flatten(0, 1))
