"""The random streams: right distributions, no relation between images, calls or seeds."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from sicl.corruptions._random import ImageDraws

CPU = torch.device("cpu")


def draws(n: int = 400, seed: int = 0, label: str = "test", first: int = 0) -> ImageDraws:
    """Return the streams of `n` images."""
    return ImageDraws(seed, label, np.arange(first, first + n), CPU)


def test_uniform_numbers_are_uniform() -> None:
    """A chi-square test over 256 cells passes, and none is 0 or 1."""
    values = draws().uniform(1000).numpy().reshape(-1)
    assert 0 < values.min() < values.max() < 1
    counts = np.histogram(values, bins=256, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue > 1e-4


def test_normal_numbers_are_normal() -> None:
    """Moments and quantiles agree with the normal distribution."""
    values = draws().normal(1000).numpy().reshape(-1)
    assert abs(values.mean()) < 0.006
    assert abs(values.std() - 1) < 0.005
    assert abs(stats.skew(values)) < 0.02
    assert abs(stats.kurtosis(values)) < 0.04
    assert (
        np.abs(np.quantile(values, [0.001, 0.1, 0.9, 0.999]) - stats.norm.ppf([0.001, 0.1, 0.9, 0.999])).max()
        < 0.06
    )


def test_integers_are_uniform_between_their_bounds() -> None:
    """Low is included, high is not."""
    counts = np.bincount(draws().integers(-2, 2, 500).numpy().reshape(-1) + 2)
    assert len(counts) == 4
    assert stats.chisquare(counts).pvalue > 1e-4


def test_neighbours_are_unrelated() -> None:
    """Numbers next to each other, in an image, between images and between calls, do not correlate."""
    source = draws()
    first, second = source.normal(1000).numpy(), source.normal(1000).numpy()
    pairs = [
        (first[:, 1:], first[:, :-1]),
        (first[1:], first[:-1]),
        (first, second),
        (first[:, ::2], first[:, 1::2]),
    ]
    pairs.append((first, draws(seed=1).normal(1000).numpy()))
    pairs.append((first, draws(label="other").normal(1000).numpy()))
    for left, right in pairs:
        assert abs(np.mean(left * right)) < 5 / np.sqrt(left.size)


def test_the_mean_of_an_image_varies_as_independent_numbers_do() -> None:
    """The variance of a mean over 1,000 numbers is a thousandth: streams hide no common part."""
    means = draws(4000).normal(1000).numpy().mean(axis=1)
    assert abs(means.var() * 1000 - 1) < 0.1


def test_a_stream_depends_on_its_own_index_only() -> None:
    """The same image in another place of another batch draws the same numbers, call by call."""
    one, other = draws(10), draws(3, first=4)
    for count in (7, 1, 32):
        assert torch.equal(one.bits(count)[4:7], other.bits(count))


def test_known_bits_stay_known() -> None:
    """A change of the generator would change every made data set: this value must not move."""
    assert draws(2).bits(2).tolist() == [[987754294, -313148187], [-2051361816, -1282739577]]
