"""Acting on predictions at a chosen risk: thresholds, bounds, calibrated vectors and sets."""

from __future__ import annotations

import math
import pickle
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sicl.errors import InputError, OptionError
from sicl.selective import bounded_threshold, calibrated_probabilities, expected_threshold, worth
from sicl.types import AlarmWarning, Prediction


def prediction(confidence: list[float], alarm: str = "") -> Prediction:
    """Return a prediction of four classes with these confidences."""
    n = len(confidence)
    logits = torch.randn(n, 4, generator=torch.Generator().manual_seed(0))
    return Prediction(logits.argmax(dim=1), torch.tensor(confidence), logits, alarm=alarm)


def test_accept_by_risk_takes_as_many_as_the_mean_error_allows() -> None:
    """0.99 and 0.95 err at 3 % in the mean; with 0.90 it would be 5.3 %."""
    out = prediction([0.90, 0.99, 0.50, 0.95])
    assert out.accept(risk=0.05, delta=None).tolist() == [False, True, False, True]
    assert out.accept(risk=0.054, delta=None).tolist() == [True, True, False, True]


def test_a_risk_is_judged_by_the_recent_stream_if_there_is_one() -> None:
    """A single picture is accepted among many like it, and refused alone or among worse ones."""
    alone = prediction([0.98])
    assert not alone.accept(risk=0.05).any()
    among = [replace(alone, recent=torch.tensor([*[other] * 200, 0.98])) for other in (0.99, 0.8)]
    assert [out.accept(risk=0.05).tolist() for out in among] == [[True], [False]]
    # A mixed stream's threshold is its own, not the batch's.
    assert replace(prediction([0.9, 0.5]), recent=torch.tensor([0.9, 0.5, *[1.0] * 99])).accept(
        risk=0.1
    ).tolist() == [True, True]


def test_by_default_one_stream_in_ten_may_err_more_often() -> None:
    """`accept(risk=...)` is `delta=0.1`; labels need a `delta`, too."""
    out = prediction([1 - i / 8000 for i in range(1000)])
    assert torch.equal(out.accept(risk=0.05), out.accept(risk=0.05, delta=0.1))
    assert 0 < int(out.accept(risk=0.05).sum()) < int(out.accept(risk=0.05, delta=None).sum())
    with pytest.raises(OptionError, match="`delta` must be a number"):
        out.accept(risk=0.05, delta=None, labelled=(torch.ones(3), torch.ones(3).bool()))


def test_the_recent_stream_is_no_part_of_what_a_prediction_says() -> None:
    """It is neither printed nor compared, and it travels with a pickled prediction."""
    out = replace(prediction([0.9]), recent=torch.ones(3))
    assert "recent" not in repr(out)
    assert torch.equal(pickle.loads(pickle.dumps(out)).recent, torch.ones(3))


def test_confidences_of_a_stream_are_worth_a_limited_number_of_labels() -> None:
    """Few say what few labels would; however many, they say no more than some 200 labels."""
    assert worth(1, 0.035) == pytest.approx(1, abs=0.01)
    assert worth(10**9, 0.035) == pytest.approx(1 / 0.07**2, rel=1e-6)
    assert worth(1000, 0.0) == pytest.approx(1000)


def test_a_stream_whose_confidence_may_be_off_accepts_less() -> None:
    """With `delta` a doubt near the risk is not enough, unless the calibration is trusted to the letter."""
    out = prediction([0.96] * 10_000)
    assert out.accept(risk=0.05, delta=None).all()
    assert out.accept(risk=0.05, miscalibration=0.0).all()
    assert not out.accept(risk=0.05).any()
    assert prediction([0.98] * 10_000).accept(risk=0.05).all()
    with pytest.raises(OptionError, match="`miscalibration`"):
        out.accept(risk=0.05, delta=0.1, miscalibration=0.6)


def test_the_bound_without_labels_holds_on_streams_that_are_off_together() -> None:
    """Over 400 streams whose error rate is spread as assumed, at most a tenth break a 10 % risk."""
    generator = torch.Generator().manual_seed(0)
    broken = 0
    for _ in range(400):
        confidence = 1 - 0.3 * torch.rand(2000, generator=generator, dtype=torch.float64)
        taken = confidence >= expected_threshold(confidence, 0.1, delta=0.1)
        doubt = float((1 - confidence[taken]).mean())
        off = 2 * 0.035 * math.sqrt(doubt * (1 - doubt)) * float(torch.randn((), generator=generator))
        wrong = torch.rand(int(taken.sum()), generator=generator) < max(0.0, doubt + off)
        broken += float(wrong.float().mean()) > 0.1
    assert broken <= 40


def test_equal_confidences_are_accepted_or_refused_together() -> None:
    """A tie that does not fit as a whole is left out as a whole."""
    out = prediction([0.99, 0.9, 0.9])
    assert out.accept(risk=0.06, delta=None).tolist() == [True, False, False]


def test_accept_by_risk_may_accept_nothing() -> None:
    """Where even the surest sample is too unsure, nobody is accepted."""
    assert not prediction([0.7, 0.6]).accept(risk=0.05, delta=None).any()


def test_a_threshold_works_as_before_and_both_or_none_is_refused() -> None:
    """`accept(0.9)` stays; a threshold and a risk together mean nothing."""
    out = prediction([0.95, 0.5])
    assert out.accept(0.9).tolist() == [True, False]
    for arguments in ({}, {"threshold": 0.9, "risk": 0.1}):
        with pytest.raises(OptionError, match="exactly one"):
            out.accept(**arguments)
    with pytest.raises(OptionError, match="`risk`"):
        out.accept(risk=1.0)


def test_an_alarm_fails_closed_and_says_why() -> None:
    """Under an alarm nothing is accepted at a promised risk, but a plain threshold is still obeyed."""
    out = prediction([0.99, 0.98], alarm="the stream is unlike what the network knows.")
    with pytest.warns(AlarmWarning, match="unlike what the network knows"):
        assert not out.accept(risk=0.2).any()
    assert out.accept(0.9).all()


def test_the_labelled_bound_holds_as_often_as_it_promises() -> None:
    """Over 200 draws of 400 labelled samples the chosen threshold breaks a 10 % risk at most as often as 10 %."""
    generator = torch.Generator().manual_seed(0)
    broken = used = 0
    for _ in range(200):
        confidence = torch.rand(400, generator=generator)
        # A confidence that is no probability at all: the bound must hold all the same.
        correct = torch.rand(400, generator=generator) < confidence**0.3
        threshold = bounded_threshold(confidence, correct, risk=0.1, delta=0.1)
        if threshold <= 1:
            used += 1
            grid = torch.linspace(threshold, 1, 1000)
            broken += float((1 - grid**0.3).mean()) > 0.1
    assert used > 100
    assert broken <= 0.1 * 200 + 10


def test_perfect_labels_give_a_bound_and_few_do_not() -> None:
    """A thousand right answers certify 5 %; ten cannot."""
    confidence = torch.linspace(0.5, 1, 1000)
    assert bounded_threshold(confidence, torch.ones(1000).bool(), risk=0.05, delta=0.05) == 0.5
    few = bounded_threshold(confidence[:10], torch.ones(10).bool(), risk=0.05, delta=0.05)
    assert few == float("inf")
    out = prediction([0.9, 0.4])
    assert out.accept(risk=0.05, labelled=(confidence, torch.ones(1000).bool())).tolist() == [True, False]
    with pytest.raises(InputError, match="`labelled`"):
        bounded_threshold(confidence, torch.ones(3).bool(), risk=0.05, delta=0.05)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 30))
def test_the_calibrated_vector_keeps_order_and_has_the_confidence_on_top(seed: int, n_classes: int) -> None:
    """It sums to one, orders classes as the logits do, and its largest entry is the confidence."""
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(8, n_classes, generator=generator)
    confidence = 1 / n_classes + (1 - 1 / n_classes) * torch.rand(8, generator=generator)
    vector = calibrated_probabilities(logits, confidence)
    assert torch.allclose(vector.sum(dim=1), torch.ones(8), atol=1e-5)
    assert torch.allclose(vector.amax(dim=1), confidence, atol=1e-4)
    assert (vector.gather(1, logits.argsort(dim=1)).diff(dim=1) >= 0).all()


def test_ties_stay_ties_and_an_impossible_confidence_becomes_a_flat_vector() -> None:
    """Two equal winners share; less than one in four cannot be the largest of four."""
    vector = calibrated_probabilities(torch.tensor([[2.0, 2.0, 0.0, 0.0]]), torch.tensor([0.4]))
    assert vector[0, 0] == vector[0, 1] == pytest.approx(0.4, abs=1e-4)
    flat = calibrated_probabilities(torch.tensor([[2.0, 1.0, 0.0, 0.0]]), torch.tensor([0.1]))
    assert torch.allclose(flat, torch.full((1, 4), 0.25), atol=1e-4)


def test_a_certain_prediction_has_a_certain_vector() -> None:
    """Confidence 1 and 0 give finite vectors."""
    vector = calibrated_probabilities(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([1.0, 0.0]))
    assert torch.allclose(vector, torch.tensor([[1.0, 0.0], [0.5, 0.5]]), atol=1e-4)


def test_sets_are_the_smallest_that_reach_the_coverage() -> None:
    """One class where the confidence suffices, more where it does not, ties together."""
    logits = torch.tensor([[5.0, 1.0, 0.0], [2.0, 1.0, 1.0]])
    out = Prediction(logits.argmax(dim=1), torch.tensor([0.95, 0.5]), logits)
    assert out.sets(0.9).tolist() == [[True, False, False], [True, True, True]]
    assert out.sets(0.5).sum(dim=1).tolist() == [1, 1]
    with pytest.raises(OptionError, match="coverage"):
        out.sets(1.0)


def test_the_expected_threshold_of_nobody_is_infinite() -> None:
    """An empty batch accepts nobody."""
    assert expected_threshold(torch.empty(0), 0.1) == float("inf")


def test_with_delta_the_accepted_rarely_err_more_than_promised() -> None:
    """Of calibrated confidences, at most one batch in ten exceeds the risk; in the mean alone, nearly half do."""
    generator = torch.Generator().manual_seed(0)
    exceeded = {None: 0, 0.1: 0}
    accepted = dict.fromkeys(exceeded, 0)
    for _ in range(300):
        confidence = 1 - 0.3 * torch.rand(128, generator=generator, dtype=torch.float64)
        wrong = torch.rand(128, generator=generator, dtype=torch.float64) > confidence
        for delta in exceeded:
            taken = confidence >= expected_threshold(confidence, 0.1, delta=delta, miscalibration=0.0)
            accepted[delta] += int(taken.sum())
            exceeded[delta] += bool(taken.any()) and float(wrong[taken].double().mean()) > 0.1
    assert exceeded[0.1] <= 30 < 90 < exceeded[None]
    assert 0 < accepted[0.1] < accepted[None]


def test_a_smaller_delta_accepts_fewer_and_a_few_samples_nothing() -> None:
    """Certainty costs acceptance; ten samples can never promise one error in twenty."""
    confidence = torch.linspace(0.8, 1.0, 4000, dtype=torch.float64)
    thresholds = [expected_threshold(confidence, 0.05, delta=delta) for delta in (None, 0.3, 0.1, 0.01)]
    assert thresholds == sorted(thresholds)
    assert len(set(thresholds)) == 4
    assert expected_threshold(torch.full((10,), 0.999), 0.05, delta=0.1) == math.inf
    assert expected_threshold(torch.ones(100), 0.05, delta=0.1) == 1.0
