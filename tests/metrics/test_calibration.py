"""Calibration error and proper scores against scikit-learn and numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import brier_score_loss, log_loss
from torch import Tensor

from sicl import metrics
from sicl.errors import InputError, OptionError

CONFIDENCE = torch.tensor([0.05, 0.15, 0.15, 0.95, 0.95, 1.0])
CORRECT = torch.tensor([0, 1, 0, 1, 0, 1])
SCALARS = [
    metrics.expected_calibration_error,
    metrics.maximum_calibration_error,
    metrics.brier_score,
    metrics.negative_log_likelihood,
    metrics.ece_by_correctness,
    metrics.reliability_bins,
    metrics.aurc,
    metrics.risk_coverage_curve,
    metrics.sliding_window_ece,
    metrics.auroc,
]


def stream(n: int = 3000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return confidences and outcomes of an overconfident classifier."""
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.rand(n, generator=generator, dtype=torch.float64)
    return confidence, torch.rand(n, generator=generator, dtype=torch.float64) < confidence**1.5


def test_ece_matches_a_case_worked_out_by_hand() -> None:
    """Ten bins: |0-.05|*1 + |.5-.15|*2 + |2/3-2.9/3|*3, over six samples."""
    expected = (0.05 + 0.7 + 0.9) / 6
    assert metrics.expected_calibration_error(CONFIDENCE, CORRECT, n_bins=10) == pytest.approx(
        expected, abs=1e-7
    )
    assert metrics.maximum_calibration_error(CONFIDENCE, CORRECT, n_bins=10) == pytest.approx(0.35, abs=1e-7)


@pytest.mark.parametrize(("bins", "strategy"), [("width", "uniform"), ("mass", "quantile")])
def test_bins_match_scikit_learn(bins: str, strategy: str) -> None:
    """The accuracy and confidence of every filled bin are those of `calibration_curve`."""
    confidence, correct = stream(3000)
    accuracy, mean = calibration_curve(correct.numpy(), confidence.numpy(), n_bins=15, strategy=strategy)
    table = metrics.reliability_bins(confidence, correct, bins=bins)
    np.testing.assert_allclose(table.accuracy.numpy(), accuracy)
    np.testing.assert_allclose(table.confidence.numpy(), mean)
    assert int(table.count.sum()) == 3000


def test_equal_mass_bins_hold_equally_many() -> None:
    """3,000 distinct confidences make 15 bins of 200, in rising order."""
    table = metrics.reliability_bins(*stream(3000), bins="mass")
    assert table.count.tolist() == [200] * 15
    assert bool((table.lower[1:] > table.upper[:-1]).all())


@given(st.permutations(range(12)))
@settings(max_examples=30, deadline=None)
def test_equal_mass_ece_does_not_depend_on_the_order_of_ties(order: list[int]) -> None:
    """Equal confidences are never split over two bins, so shuffling the stream changes nothing."""
    confidence = torch.tensor([0.2, 0.2, 0.2, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0])
    correct = torch.tensor([1, 0, 0, 1, 0, 1, 0, 1, 0, 1, 1, 0])
    expected = metrics.expected_calibration_error(confidence, correct, n_bins=5, bins="mass")
    shuffled = metrics.expected_calibration_error(confidence[order], correct[order], n_bins=5, bins="mass")
    assert shuffled == pytest.approx(expected, abs=1e-12)


def test_a_tie_goes_where_the_middle_of_its_ranks_lies() -> None:
    """Nine equal confidences above one other: their middle is in the upper half of two bins."""
    confidence = torch.tensor([0.1] + [0.5] * 9)
    table = metrics.reliability_bins(confidence, torch.ones(10), n_bins=2, bins="mass")
    assert table.count.tolist() == [1, 9]
    assert (table.lower.tolist(), table.upper.tolist()) == (
        pytest.approx([0.1, 0.5]),
        pytest.approx([0.1, 0.5]),
    )


def test_confidence_of_exactly_zero_and_one_falls_into_the_first_and_last_bin() -> None:
    """Vote shares are often 0 or 1; every sample is counted once."""
    confidence = torch.tensor([0.0, 0.0, 1.0, 1.0])
    table = metrics.reliability_bins(confidence, torch.tensor([0, 0, 1, 0]))
    assert table.count.tolist() == [2] + [0] * 13 + [2]
    assert metrics.expected_calibration_error(confidence, torch.tensor([0, 0, 1, 0])) == pytest.approx(0.25)


@pytest.mark.parametrize("n_bins", [5, 10, 15, 20, 100])
def test_every_vote_share_falls_into_the_same_bin_in_float32_and_float64(n_bins: int) -> None:
    """A share that sits on a bin's edge belongs to the bin below, whatever its precision."""
    exact = torch.arange(n_bins + 1, dtype=torch.float64) / n_bins
    right = torch.ones(n_bins + 1)
    expected = [2] + [1] * (n_bins - 1)
    for confidence in (exact, exact.float()):
        assert metrics.reliability_bins(confidence, right, n_bins=n_bins).count.tolist() == expected


def test_an_empty_bin_counts_zero_and_holds_no_nan() -> None:
    """Bins without samples report zeros and do not touch the error."""
    table = metrics.reliability_bins(torch.tensor([0.5]), torch.tensor([True]), n_bins=3)
    assert table.count.tolist() == [0, 1, 0]
    assert table.accuracy.tolist() == [0.0, 1.0, 0.0]
    assert table.gap.tolist() == [0.0, 0.5, 0.0]


def test_proper_scores_match_scikit_learn() -> None:
    """Brier score and log loss are the binary ones of "the label is right"."""
    confidence, correct = stream(500)
    assert metrics.brier_score(confidence, correct) == pytest.approx(brier_score_loss(correct, confidence))
    assert metrics.negative_log_likelihood(confidence, correct) == pytest.approx(
        log_loss(correct, confidence)
    )


def test_a_wrong_sample_at_full_confidence_costs_the_clipped_log() -> None:
    """The likelihood is clipped, so the score stays finite: -ln(1e-7) for the wrong one."""
    worst = metrics.negative_log_likelihood(torch.tensor([1.0, 0.0]), torch.tensor([0, 1]))
    assert worst == pytest.approx(-math.log(1e-7))
    milder = metrics.negative_log_likelihood(torch.tensor([1.0]), torch.tensor([0]), eps=0.1)
    assert milder == pytest.approx(-math.log(0.1))
    right = metrics.negative_log_likelihood(torch.tensor([1.0]), torch.tensor([1]), eps=0.1)
    assert right == pytest.approx(-math.log(0.9))


def test_the_clip_must_leave_room_between_zero_and_one_half() -> None:
    """`eps` outside (0, 0.5) is refused."""
    with pytest.raises(OptionError, match="eps"):
        metrics.negative_log_likelihood(CONFIDENCE, CORRECT, eps=0.5)


def test_ece_of_the_right_and_wrong_apart() -> None:
    """Among the right it is 1 - mean confidence, among the wrong the mean confidence."""
    parts = metrics.ece_by_correctness(CONFIDENCE, CORRECT)
    assert parts.right == pytest.approx(1 - (0.15 + 0.95 + 1.0) / 3)
    assert parts.wrong == pytest.approx((0.05 + 0.15 + 0.95) / 3)
    assert metrics.ece_by_correctness(torch.tensor([0.9]), torch.tensor([True])).wrong is None


@pytest.mark.parametrize("function", SCALARS)
def test_empty_input_is_refused(function: object) -> None:
    """No metric invents a number for no samples."""
    with pytest.raises(InputError, match="at least one value"):
        function(torch.empty(0), torch.empty(0))  # type: ignore[operator]


@pytest.mark.parametrize("function", SCALARS)
def test_nan_is_refused_and_counted(function: object) -> None:
    """A NaN is an error of the caller, not a number to average over."""
    with pytest.raises(InputError, match="1 NaN or infinite of 2"):
        function(torch.tensor([0.5, math.nan]), torch.tensor([1, 0]))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("confidence", "correct", "message"),
    [
        ([0.5, 1.5], [1, 0], r"\[0, 1\]"),
        ([-0.1, 0.5], [1, 0], r"\[0, 1\]"),
        ([0.5, 0.5], [1], "1 for 2"),
        ([0.5, 0.5], [1, 2], "booleans"),
        ([[0.5], [0.5]], [1, 0], "vector"),
    ],
)
def test_impossible_input_is_refused_in_one_sentence(
    confidence: list[float], correct: list[int], message: str
) -> None:
    """Wrong ranges, lengths and shapes name the argument."""
    with pytest.raises(InputError, match=message):
        metrics.expected_calibration_error(torch.tensor(confidence), torch.tensor(correct))


def test_unknown_bins_are_refused_with_the_known_ones() -> None:
    """A typo in `bins` lists the choices."""
    with pytest.raises(OptionError, match="width, mass"):
        metrics.expected_calibration_error(CONFIDENCE, CORRECT, bins="equal")  # type: ignore[arg-type]


def test_one_sample_has_every_metric() -> None:
    """With a single right sample at 0.75 each value follows by hand."""
    one = torch.tensor([0.75]), torch.tensor([True])
    assert metrics.expected_calibration_error(*one) == pytest.approx(0.25)
    assert metrics.expected_calibration_error(*one, bins="mass") == pytest.approx(0.25)
    assert metrics.maximum_calibration_error(*one) == pytest.approx(0.25)
    assert metrics.brier_score(*one) == pytest.approx(0.0625)
    assert metrics.negative_log_likelihood(*one) == pytest.approx(-math.log(0.75))
    assert metrics.aurc(*one) == 0.0
