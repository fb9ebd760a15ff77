"""Cumulative and sliding-window ECE equal the plain ECE of what they claim to have seen."""

from __future__ import annotations

import pytest
import torch

from sicl import metrics
from sicl.errors import InputError


def stream(n: int = 1000) -> tuple[torch.Tensor, torch.Tensor]:
    """Return n vote shares of 20 and outcomes."""
    generator = torch.Generator().manual_seed(1)
    confidence = torch.randint(0, 21, (n,), generator=generator) / 20
    return confidence, torch.rand(n, generator=generator) < confidence


def test_cumulative_ece_averages_the_ece_of_everything_seen_at_each_step() -> None:
    """The streaming sums give what recomputing from all samples at every step gives."""
    confidence, correct = stream(400)
    meter = metrics.CumulativeEce()
    steps = []
    for start in range(0, 400, 64):
        stop = min(start + 64, 400)
        meter.update(confidence[start:stop], correct[start:stop])
        steps.append(metrics.expected_calibration_error(confidence[:stop], correct[:stop]))
        assert meter.current() == pytest.approx(steps[-1], abs=1e-12)
    assert meter.n_steps == 7
    assert meter.compute() == pytest.approx(sum(steps) / 7, abs=1e-12)


def test_cumulative_ece_by_hand() -> None:
    """First step: |1-.5| = .5; then both in one bin: |.5-.5| = 0; the mean is .25."""
    meter = metrics.CumulativeEce(n_bins=1)
    meter.update(torch.tensor([0.5]), torch.tensor([True]))
    meter.update(torch.tensor([0.5]), torch.tensor([False]))
    assert meter.compute() == pytest.approx(0.25)


def test_an_empty_batch_is_no_step() -> None:
    """A batch of out-of-distribution samples only does not dilute the average."""
    meter = metrics.CumulativeEce()
    meter.update(torch.tensor([1.0]), torch.tensor([False]))
    meter.update(torch.empty(0), torch.empty(0, dtype=torch.bool))
    assert (meter.n_steps, meter.compute()) == (1, 1.0)


def test_nothing_seen_is_an_error_and_reset_forgets() -> None:
    """`compute` before any sample says what to do; after `reset` the meter is new."""
    meter = metrics.CumulativeEce()
    with pytest.raises(InputError, match="update"):
        meter.compute()
    meter.update(torch.tensor([1.0]), torch.tensor([False]))
    meter.reset()
    with pytest.raises(InputError, match="update"):
        meter.current()


def test_sliding_window_ece_equals_the_ece_of_each_window() -> None:
    """Differences of running sums give the same numbers as cutting the windows out."""
    confidence, correct = stream(1000)
    result = metrics.sliding_window_ece(confidence, correct, window=300, stride=130)
    assert result.end.tolist() == [300, 430, 560, 690, 820, 950, 1000]
    for end, ece in zip(result.end.tolist(), result.ece.tolist()):
        window = slice(end - 300, end)
        plain = metrics.expected_calibration_error(confidence[window], correct[window])
        assert ece == pytest.approx(plain, abs=1e-12)


def test_a_stream_shorter_than_the_window_is_one_window() -> None:
    """Nothing is left out and nothing is padded."""
    confidence, correct = stream(50)
    result = metrics.sliding_window_ece(confidence, correct, window=1000)
    assert result.end.tolist() == [50]
    assert result.ece.item() == pytest.approx(metrics.expected_calibration_error(confidence, correct))
