"""Bets against claims, and means with intervals that hold at every time."""

from __future__ import annotations

import numpy as np
import pytest

from sicl.monitor import Detector, MeanSequence
from sicl.monitor.window import Window, effective_classes


def run_length(scores: np.ndarray, limit: float, rate: float) -> int | None:
    """Return when the alarm goes on one claim, or None."""
    return Detector(rate).add({"claim": scores}, {"claim": limit})


def test_false_alarms_are_as_rare_as_stated_on_the_worst_stream_that_is_well() -> None:
    """Scores exactly at the limit, rate 1/200: the mean time to a false alarm (cut at 1,000) is at least 200."""
    scores = (np.random.default_rng(0).random((150, 1000)) < 0.7).astype(float)
    lengths = [run_length(row, 0.7, 1 / 200) for row in scores]
    assert np.mean([1000 if length is None else length + 1 for length in lengths]) >= 200


def test_healthy_streams_stay_quiet_at_the_default_rate() -> None:
    """Sixty streams well above the limit, 1,000 samples each: no alarm."""
    scores = np.random.default_rng(1).beta(9, 1, (60, 1000))
    assert all(run_length(row, 0.7, 1e-5) is None for row in scores)


def test_a_fall_is_noticed_soon_however_long_all_was_well() -> None:
    """After 5,000 good samples a fall from 0.9 to 0.4 is noticed within 100."""
    rng = np.random.default_rng(2)
    good, bad = rng.beta(9, 1, 5000), rng.beta(4, 6, 200)
    alarm = run_length(np.concatenate([good, bad]), 0.7, 1e-5)
    assert alarm is not None
    assert 5000 <= alarm < 5100


def test_batches_or_single_samples_make_no_difference() -> None:
    """The evidence depends on the samples, not on how they were cut into batches."""
    scores = np.random.default_rng(3).random(60)
    whole, parts = Detector(1e-5), Detector(1e-5)
    whole.add({"a": scores, "b": 1 - scores}, {"a": 0.5, "b": 0.4})
    for i in range(60):
        parts.add({"a": scores[i : i + 1], "b": 1 - scores[i : i + 1]}, {"a": 0.5, "b": 0.4})
    assert parts.evidence == pytest.approx(whole.evidence)


def test_the_most_doubtful_claim_is_named_first_and_state_round_trips() -> None:
    """Bad scores make a suspect; a loaded detector holds the same evidence."""
    detector = Detector(1e-5)
    detector.add({"fine": np.ones(20), "odd": np.zeros(20)}, {"fine": 0.5, "odd": 0.2})
    assert detector.suspects[0] == "odd"
    other = Detector(1e-5)
    other.load_state_dict(detector.state_dict())
    assert other.evidence == detector.evidence


def test_the_interval_of_a_mean_covers_at_every_time() -> None:
    """Of 60 drifting Bernoulli streams of 500, looked at 5 times each, at most 6 ever leave the 90 % interval."""
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(60):
        chances = np.linspace(0.9, 0.6, 500)
        values = (rng.random(500) < chances).astype(float)
        sequence, bad = MeanSequence(0.9), False
        for part in range(5):
            sequence.add(values[100 * part : 100 * part + 100])
            low, high = sequence.interval
            bad |= not low <= chances[: 100 * part + 100].mean() <= high
        missed += bad
    assert missed <= 6


def test_the_interval_narrows_and_a_new_one_knows_nothing() -> None:
    """[0, 1] at first; within 4 points after 2,000 values of one kind."""
    sequence = MeanSequence(0.95)
    assert sequence.interval == (0.0, 1.0)
    sequence.add(np.ones(2000))
    low, high = sequence.interval
    assert low > 0.96
    assert high == 1.0


def test_a_window_keeps_the_last_samples_of_every_column_in_step() -> None:
    """Columns that come later are NaN before; all have one length, and the oldest samples go."""
    window = Window(5)
    window.add(a=np.array([1.0, 2.0]), b=np.array([10.0, 20.0]))
    assert {name: column.tolist() for name, column in window.columns.items()} == {"a": [1, 2], "b": [10, 20]}
    window.add(a=np.array([3.0, 4.0]), c=np.array([7.0, 8.0]))
    assert {len(column) for column in window.columns.values()} == {4}
    assert (window.mean("a"), window.mean("b"), window.mean("c")) == (2.5, 15.0, 7.5)
    window.add(a=np.array([5.0, 6.0]))
    assert window.columns["a"].tolist() == [2, 3, 4, 5, 6]
    assert window.mean("d") is None


def test_effective_classes_counts_what_is_in_use() -> None:
    """Four classes equally often are four; one alone is one."""
    assert effective_classes(np.array([0.0, 1, 2, 3] * 5)) == pytest.approx(4)
    assert effective_classes(np.zeros(9)) == pytest.approx(1)
