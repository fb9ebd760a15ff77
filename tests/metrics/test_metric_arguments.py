"""What a metric cannot use is said in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sicl import metrics
from sicl.errors import InputError, OptionError

HALF, RIGHT = torch.full((4,), 0.5), torch.tensor([True, False, True, True])


@pytest.mark.parametrize(
    "confidence",
    [
        "text",
        None,
        [object()],
        torch.rand(4) * 1j,
        torch.rand(4, device="meta"),
        [10**400] * 4,
        {"a": 1},
        [[1], [1, 2]],
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize(
    "metric", [metrics.brier_score, metrics.auroc, metrics.aurc, metrics.expected_calibration_error]
)
def test_what_is_no_vector_of_numbers_is_refused(metric: Any, confidence: Any) -> None:
    """Strings, objects, complex numbers, tensors without content."""
    with pytest.raises(InputError, match="must"):
        metric(confidence, RIGHT)


@pytest.mark.parametrize("n_bins", [2.5, "15", None, True, 0, -1, 10**9, 2**70])
def test_the_number_of_bins_is_an_integer_within_reason(n_bins: Any) -> None:
    """A million million bins would take all memory."""
    for call in (
        lambda: metrics.expected_calibration_error(HALF, RIGHT, n_bins=n_bins),
        lambda: metrics.CumulativeEce(n_bins=n_bins),
        lambda: metrics.sliding_window_ece(HALF, RIGHT, n_bins=n_bins),
    ):
        with pytest.raises(OptionError, match="`n_bins` must"):
            call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.sliding_window_ece(HALF, RIGHT, window=2.5), "`window` must be an integer"),
        (lambda: metrics.negative_log_likelihood(HALF, RIGHT, eps="x"), "`eps` must be a finite number"),
        (lambda: metrics.threshold_for_risk(HALF, RIGHT, None), "`risk` must be a finite number"),
        (lambda: metrics.CumulativeEce().update(3, RIGHT), "`confidence` must"),
        (lambda: metrics.gram_matrix([1.0]), "`features` must"),
        (lambda: metrics.gram_matrix(torch.full((2, 3), 1e300, dtype=torch.float64)), "not finite"),
        (lambda: metrics.ClassStatistics(torch.rand(2), torch.rand(2, 2)), "`centroids` must have 2 dim"),
        (lambda: _fit(labels=torch.tensor([0, 1, 2, 0])), "`labels` must lie in 0..1"),
        (lambda: _fit(labels=torch.tensor([0, 1])), "`labels` must be 4 class indices"),
        (lambda: _fit(embeddings=torch.full((4, 2), float("nan"))), "`embeddings` must be finite"),
        (
            lambda: metrics.mahalanobis_distance(torch.rand(4, 5), RIGHT, _fit()),
            "`embeddings` must be .* x 2",
        ),
        (lambda: metrics.mahalanobis_distance(torch.rand(4, 2), RIGHT + 7, _fit()), "`labels` must lie in"),
        (lambda: metrics.style_variance(torch.rand(2, 3, 4), torch.rand(())), "`features` must be"),
    ],
)
def test_options_and_shapes_are_checked(call: Any, message: str) -> None:
    """The argument, the rule and the value are in the message."""
    with pytest.raises((OptionError, InputError), match=message):
        call()


def _fit(
    embeddings: torch.Tensor | None = None, labels: torch.Tensor | None = None
) -> metrics.ClassStatistics:
    embeddings = torch.rand(4, 2) if embeddings is None else embeddings
    labels = torch.tensor([0, 1, 0, 1]) if labels is None else labels
    return metrics.ClassStatistics.fit(embeddings, labels, n_classes=2)
