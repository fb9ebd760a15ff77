"""AUROC, AURC and operating points: against scikit-learn, brute force and hand-made cases."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from sicl import metrics
from sicl.errors import InputError, OptionError

PAIRS = st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=40)


@given(PAIRS)
@settings(max_examples=60, deadline=None)
def test_auroc_matches_scikit_learn_with_many_ties(pairs: list[tuple[int, bool]]) -> None:
    """Five distinct scores over up to 40 samples: ties count one half, exactly."""
    scores, positive = zip(*pairs)
    if len(set(positive)) == 2:
        ours = metrics.auroc(torch.tensor(scores), torch.tensor(positive))
        assert ours == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)


@pytest.mark.parametrize("positive", [[True, True], [False, False]])
def test_auroc_needs_both_kinds(positive: list[bool]) -> None:
    """With one class only the value is undefined and the error says so."""
    with pytest.raises(InputError, match="positive and negative"):
        metrics.auroc(torch.tensor([0.1, 0.2]), torch.tensor(positive))


def test_auroc_takes_any_finite_score() -> None:
    """Scores are a ranking, not probabilities."""
    assert metrics.auroc(torch.tensor([-7.0, 40.0]), torch.tensor([0, 1])) == 1.0


@given(st.lists(st.tuples(st.sampled_from([0.2, 0.5, 1.0]), st.booleans()), min_size=1, max_size=6))
@settings(max_examples=40, deadline=None)
def test_aurc_with_ties_is_the_mean_over_all_orders(pairs: list[tuple[float, bool]]) -> None:
    """Brute force over every permutation that sorts by confidence gives the same area."""
    orders = [order for order in permutations(pairs) if list(order) == sorted(order, key=lambda p: -p[0])]
    areas = []
    for order in orders:
        wrong = [1 - correct for _, correct in order]
        areas.append(sum(sum(wrong[: k + 1]) / (k + 1) for k in range(len(wrong))) / len(wrong))
    confidence, correct = zip(*pairs)
    ours = metrics.aurc(torch.tensor(confidence), torch.tensor(correct))
    assert ours == pytest.approx(sum(areas) / len(areas))


def test_risk_coverage_curve_by_hand() -> None:
    """Three distinct confidences make three points, ties accepted together."""
    curve = metrics.risk_coverage_curve(torch.tensor([0.5, 1.0, 0.5, 0.25]), torch.tensor([1, 1, 0, 0]))
    assert curve.threshold.tolist() == [1.0, 0.5, 0.25]
    assert curve.coverage.tolist() == [0.25, 0.75, 1.0]
    assert curve.risk.tolist() == pytest.approx([0.0, 1 / 3, 0.5])


def test_expected_risk_ends_at_the_error_rate() -> None:
    """Accepting everything risks 1 - accuracy; before that the most confident come first."""
    risk = metrics.expected_risk(torch.tensor([0.5, 1.0, 0.5, 0.25]), torch.tensor([1, 1, 0, 0]))
    assert risk.tolist() == pytest.approx([0.0, 0.25, 1 / 3, 0.5])


def test_threshold_for_risk_accepts_as_much_as_the_risk_allows() -> None:
    """The returned point keeps its promise on the data, and the next lower threshold would not."""
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(2000, generator=generator)
    correct = torch.rand(2000, generator=generator) < confidence
    point = metrics.threshold_for_risk(confidence, correct, 0.1)
    assert point is not None
    accepted = confidence >= point.threshold
    assert point.coverage == pytest.approx(float(accepted.double().mean()))
    assert point.risk == pytest.approx(1 - float(correct[accepted].double().mean()))
    assert point.risk <= 0.1
    lower = confidence[confidence < point.threshold]
    for threshold in lower.sort(descending=True).values[:200]:
        assert 1 - correct[confidence >= threshold].double().mean() > 0.1


def test_a_risk_met_exactly_is_met() -> None:
    """Half of two accepted are wrong: a wished risk of one half accepts both."""
    point = metrics.threshold_for_risk(torch.tensor([0.75, 0.5]), torch.tensor([1, 0]), 0.5)
    assert point == (0.5, 1.0, 0.5)


def test_a_risk_out_of_reach_returns_none() -> None:
    """When even the most confident are wrong, no threshold helps."""
    assert metrics.threshold_for_risk(torch.tensor([0.9, 0.5]), torch.tensor([0, 1]), 0.1) is None


def test_a_risk_must_be_a_share() -> None:
    """A percentage instead of a share is refused."""
    with pytest.raises(OptionError, match="risk"):
        metrics.threshold_for_risk(torch.tensor([0.9]), torch.tensor([1]), 5.0)
