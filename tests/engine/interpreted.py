"""The Triton kernels beside plain torch, in Triton's interpreter: `test_kernels.py` runs this where there is Triton."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sicl import perturb
from sicl.engine.kernels import norm, variants

LAST = torch.channels_last
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-3}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)


def _maps(*size: int, seed: int = 0) -> Tensor:
    values = torch.randn(size, generator=torch.Generator().manual_seed(seed))
    return values.contiguous(memory_format=LAST) if len(size) == 4 else values


def _expected(x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    weight, bias = (None if value is None else value.double() for value in (weight, bias))
    parts = x.double().chunk(groups)
    if parts[0][:, 0].numel() == 1:
        # Torch refuses a single value a channel, which is its own mean.
        zero = torch.zeros_like(x.double())
        return zero if bias is None else zero + bias.view(1, -1, 1, 1)
    done = [torch.nn.functional.batch_norm(part, None, None, weight, bias, True) for part in parts]
    return torch.cat(done)


@DTYPES
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 1),
        (2, 3, 1, 1),
        (1, 5, 2, 9),
        (2, 130, 3, 3),
        (4, 257, 1, 2),
        (2, 64, 17, 13),
        (2, 7, 33, 33),
    ],
)
def test_norms_are_those_of_torch(shape: tuple[int, ...], groups: int, dtype: torch.dtype) -> None:
    """Odd channels, one sample, one pixel, several strips and parts; with and without each thing that is fused."""
    x = (2 * _maps(shape[0] * groups, *shape[1:]) + 1).to(dtype)
    other, affine = _maps(*x.shape, seed=1).to(dtype), [_maps(shape[1], seed=seed) for seed in (2, 3)]
    # Every thing that is fused, given and not, at least once.
    cases = [(1, 1, 1, 1), *([(0, 0, 0, 0), (1, 0, 0, 1), (0, 1, 1, 0)] if dtype == torch.float32 else [])]
    for *given, added, relu in cases:
        weight, bias = (value if use else None for use, value in zip(given, affine))
        how = {"other": other if added else None, "relu": bool(relu)}
        found = norm.grouped_norm(x, groups, weight, bias, 1e-5, **how)  # type: ignore[arg-type]
        expected = _expected(x, groups, weight, bias) + (other.double() if added else 0)
        expected = expected.relu() if relu else expected
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])


def test_norms_keep_what_they_normalised_with() -> None:
    """The mean and the biased variance, over all parts of a batch."""
    x = _maps(4, 150, 17, 17)
    mean, variance = torch.full((150,), 9.0), torch.full((150,), 9.0)
    norm.grouped_norm(x, 1, None, None, 1e-5, keep=(mean, variance))
    torch.testing.assert_close(mean, x.mean(dim=(0, 2, 3)), atol=1e-5, rtol=0)
    torch.testing.assert_close(variance, x.var(dim=(0, 2, 3), correction=0), atol=1e-5, rtol=0)


@pytest.mark.parametrize("mean", [100.0, -1000.0])
def test_a_channel_far_from_zero_has_its_variance(mean: float) -> None:
    """Sums of squares in float32 have no digits left for it."""
    x = _maps(8, 3, 16, 16) + mean
    found = norm.grouped_norm(x, 2, None, None, 1e-5)
    torch.testing.assert_close(found.double(), _expected(x, 2, None, None), atol=1e-3, rtol=0)


@DTYPES
@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (1, 3, 1, 1), (5, 6, 7, 9), (3, 130, 9, 9), (4, 7, 12), (2, 33, 65)]
)
def test_variants_are_those_of_torch(shape: tuple[int, ...], chosen: bool, dtype: torch.dtype) -> None:
    """Maps and tokens, into memory of their own and into a part of a larger one."""
    features, n = _maps(*shape).to(dtype), 3
    size = (n, shape[0], shape[1] if len(shape) == 4 else shape[2])
    scale, shift, std = _maps(*size, seed=1), _maps(*size, seed=2), _maps(*size[1:], seed=3).abs()
    blocks = _maps(n, perturb.block_length(features), seed=4)
    rows = torch.arange(shape[0]).flip(0) if chosen else None
    tolerance = {"atol": TOLERANCE[dtype], "rtol": TOLERANCE[dtype]}
    whole = perturb.room_for(features, n + 2).fill_(7)
    place = whole[shape[0] : -shape[0]]
    for out in (perturb.room_for(features, n), place):
        found = variants.affine(features, scale, shift[..., :1].expand(size), out).double()
        expected = perturb.apply_map(features.double(), scale.double(), shift[..., :1].expand(size).double())
        torch.testing.assert_close(found, expected, **tolerance)
        found = variants.noisy(features, std, blocks, rows, perturb.WINDOW_STEP, out).double()
        expected = perturb.window_variants(features.double(), std.double(), blocks.double(), rows)
        torch.testing.assert_close(found, expected, **tolerance)
    assert bool((whole[: shape[0]] == 7).all())
    assert bool((whole[-shape[0] :] == 7).all())


def test_kernels_prove_themselves() -> None:
    """What a GPU asks of them before it believes them."""
    assert norm._proven(torch.device("cpu"))
    assert variants._proven(torch.device("cpu"))
