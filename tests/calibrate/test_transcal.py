"""TransCal: the density ratio, the controlled accuracy estimate, and the match of confidence to it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from calibrate_networks import images, small_net, source_data
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import sicl
from sicl.calibrate._passes import is_due
from sicl.calibrate.transcal import (
    density_ratio,
    logistic_regression,
    match_accuracy,
    mean_confidence,
    weighted_accuracy,
)
from sicl.errors import InputError, OptionError


def _normal(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("penalty", [0.1, 1.0, 30.0])
def test_the_regression_is_scikit_learns(penalty: float) -> None:
    """Same coefficients and intercept, with sample weights."""
    features, weight = _normal(300, 6), torch.rand(300, generator=torch.Generator().manual_seed(1)) + 0.5
    positive = features[:, 0] + 0.5 * features[:, 1] + _normal(300, seed=2) > 0.3
    coefficients, intercept = logistic_regression(features, positive, weight, penalty=penalty)
    reference = LogisticRegression(C=1 / penalty, tol=1e-8, max_iter=1000)
    reference.fit(features.numpy(), positive.numpy(), sample_weight=weight.numpy())
    np.testing.assert_allclose(coefficients.numpy(), reference.coef_[0], atol=5e-3)
    assert float(intercept) == pytest.approx(float(reference.intercept_[0]), abs=5e-3)


def test_the_density_ratio_of_shifted_normals_is_known() -> None:
    """N(m, 1) over N(0, 1) is exp(m x - m^2 / 2), whatever the sizes of the two samples."""
    source, shift = _normal(6000, 1), 0.7
    ratio = density_ratio(source, _normal(2000, 1, seed=1) + shift)
    expected = (shift * source[:, 0] - shift**2 / 2).exp()
    torch.testing.assert_close(ratio.log(), expected.log(), atol=0.25, rtol=0)
    assert float(ratio.mean()) == pytest.approx(1.0, abs=0.1)


def test_domains_that_do_not_overlap_give_finite_ratios() -> None:
    """A separable problem has no finite odds; the ratio is clamped."""
    ratio = density_ratio(_normal(40, 3), _normal(40, 3, seed=1) + 1000)
    assert bool(torch.isfinite(ratio).all())
    assert float(ratio.min()) == pytest.approx(1e-4)


def test_control_variates_keep_the_mean_and_lower_the_variance() -> None:
    """Over many draws the controlled estimate is as right as the plain one, and steadier."""
    plain, controlled = [], []
    for seed in range(300):
        x = _normal(200, seed=seed).double()
        weight = (x - 0.5).exp()
        chance = torch.sigmoid(1.5 - x)
        right = (torch.rand(200, generator=torch.Generator().manual_seed(seed)) < chance).double()
        plain.append(float(1 - (weight * (1 - right)).mean()))
        controlled.append(float(weighted_accuracy(weight, right, 0.7704)))
    truth = float(torch.sigmoid(1.5 - (_normal(200_000, seed=7) + 1)).mean())
    assert np.mean(controlled) == pytest.approx(truth, abs=0.03)
    assert np.std(controlled) < 0.7 * np.std(plain)


@pytest.mark.parametrize("right", [torch.ones(50).double(), torch.zeros(50).double()])
def test_source_data_all_right_or_all_wrong_gives_a_finite_estimate(right: Tensor) -> None:
    """A constant control has no variance to divide by."""
    assert bool(torch.isfinite(weighted_accuracy(_normal(50).exp().double(), right, 0.9)))
    assert bool(torch.isfinite(weighted_accuracy(torch.ones(50).double(), right, 0.9)))


def test_the_derivative_of_the_mean_confidence_is_exact() -> None:
    """Against a finite difference."""
    logits = 4 * _normal(100, 5).double()
    margins = logits - logits.amax(dim=1, keepdim=True)
    value, slope = mean_confidence(margins, 1.7)
    assert value == pytest.approx(float((logits / 1.7).softmax(dim=1).amax(dim=1).mean()))
    numeric = (mean_confidence(margins, 1.7 + 1e-5)[0] - mean_confidence(margins, 1.7 - 1e-5)[0]) / 2e-5
    assert slope == pytest.approx(numeric, rel=1e-5)


@pytest.mark.parametrize("accuracy", [0.9, 0.75, 0.5])
def test_without_shift_the_mean_confidence_becomes_the_accuracy(accuracy: float) -> None:
    """With all ratios 1 the estimate is the source's accuracy, and T makes the confidence meet it."""
    logits = 8 * _normal(2000, 5)
    right = torch.arange(1000) < 1000 * accuracy
    temperature, estimate = match_accuracy(logits, torch.ones(1000), right=right, source_confidence=accuracy)
    assert estimate == pytest.approx(accuracy, abs=1e-6)
    confidence = float((logits / temperature).softmax(dim=1).amax(dim=1).mean())
    assert confidence == pytest.approx(accuracy, abs=5e-3)


def test_it_never_sharpens() -> None:
    """T >= 1, as published: an underconfident model is left as it is."""
    right = torch.ones(100, dtype=torch.bool)
    temperature, _ = match_accuracy(
        0.1 * _normal(500, 5), torch.ones(100), right=right, source_confidence=1.0
    )
    assert temperature == pytest.approx(1.0)


def test_refits_are_frequent_at_first_and_regular_later() -> None:
    """Early on each batch doubles what there is to fit on."""
    assert [count for count in range(31) if is_due(count, 10)] == [0, 1, 2, 4, 8, 10, 20, 30]


def test_the_temperature_moves_only_when_it_is_refitted() -> None:
    """`every=3`: batches 0, 1, 2, 3 and 6 refit."""
    model = small_net()
    calibrated = sicl.TransCal(every=3).attach(sicl.Tent(lr=1e-3).attach(model), source=source_data(model))
    seen = [float(calibrated(images(seed=seed)).signals["temperature"]) for seed in range(7)]
    assert seen[3] == seen[4] == seen[5]
    assert all(1 <= temperature <= 100 for temperature in seen)


@pytest.mark.parametrize(
    "options", [{"every": 0}, {"window": 0}, {"penalty": 0.0}, {"source_samples": 0}, {"batch_size": 0}]
)
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    """Specs are checked when made."""
    with pytest.raises(OptionError, match=next(iter(options))):
        sicl.TransCal(**options)


def test_a_single_source_sample_is_refused() -> None:
    """Cross-fitting needs two halves."""
    with pytest.raises(InputError, match="at least 2 source samples"):
        sicl.TransCal().attach(small_net(), source=sicl.SourceData(images(1), torch.tensor([0])))
