"""How much each vote counts: answers that agree with each other on the stream count, noise does not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sicl.calibrate.sicl.say import MOST, PRIOR, WINDOW, Say, agreements


def _answers(*noise: float, n: int = 256, seed: int = 0) -> Tensor:
    """Answers to as many questions: one hidden truth, and so much noise each."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.rand(n, generator=generator)
    rows = [(1 - part) * truth + part * torch.rand(n, generator=generator) for part in noise]
    return torch.stack(rows)


def _learnt(*batches: Tensor) -> Say:
    """After the network's answers to these batches."""
    say = Say()
    for answers in batches:
        say.observe({"network": answers})
    return say


def test_a_question_that_is_noise_loses_its_say() -> None:
    """Three questions agree, the fourth is unrelated: it counts for little, the others alike."""
    share, _ = _learnt(_answers(0.2, 0.2, 0.2, 1.0)).weights("network")
    assert float(share.sum()) == pytest.approx(1.0)
    assert float(share[3]) < 0.1
    assert float(share[:3].max() / share[:3].min()) < 1.2


def test_all_count_alike_before_anything_was_seen() -> None:
    """One sample says nothing about agreement: the prior rules."""
    share, weight = _learnt(_answers(0.1, 1.0, n=1)).weights("network")
    torch.testing.assert_close(share, torch.full((2,), 0.5))
    assert float(weight) == pytest.approx((PRIOR / (1 - PRIOR)) ** 2, rel=0.3)


def test_a_witness_with_unrelated_answers_loses_its_say() -> None:
    """Beside one whose answers agree; by the square of the odds."""
    (_, knows), (_, guesses) = (_learnt(_answers(*3 * [noise])).weights("network") for noise in (0.2, 1.0))
    assert float(guesses) < 0.02 * float(knows)


def test_say_does_not_depend_on_how_the_stream_is_cut_into_batches() -> None:
    """The same samples in batches of 1, 16 and 256 teach the same."""
    stream = _answers(0.2, 0.5, 1.0)
    learnt = [_learnt(*stream.split(size, dim=1)).weights("network") for size in (1, 16, 256)]
    found = [torch.cat([share, weight.unsqueeze(0)]) for share, weight in learnt]
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[0], found[2])


def test_agreement_is_the_mean_correlation_with_the_others() -> None:
    """Against torch's own correlation, up to the prior; constant answers agree with nothing, nobody is sure."""
    answers = _answers(0.2, 0.5, 0.9, n=4096).T
    correlation = torch.corrcoef(answers.T)
    expected = (correlation.sum(dim=1) - 1) / 2
    torch.testing.assert_close(agreements(answers), expected, atol=5e-3, rtol=0)
    constant = torch.cat([answers[:, :2], torch.full((4096, 1), 0.5)], dim=1)
    assert float(agreements(constant)[2]) < 0.01
    assert float(agreements(answers[:, :1].expand(-1, 3)).max()) == pytest.approx(MOST)
    assert float(agreements(answers[:, :1])) == PRIOR


def test_the_memory_is_bounded_and_forgets_what_was_long_ago() -> None:
    """A question that turns to noise loses the say it had, and no more than a window is kept."""
    say = _learnt(*(_answers(0.2, 0.2, 0.2, seed=s) for s in range(4)))
    before = float(say.weights("network")[0][2])
    for seed in range(4):
        say.observe({"network": _answers(0.2, 0.2, 1.0, seed=seed)})
    assert float(say.weights("network")[0][2]) < 0.3 * before
    assert len(say.state_dict()["network"]["rows"]) == WINDOW


def test_a_saved_say_weighs_as_the_original() -> None:
    """Into a new one, for every witness."""
    say, other = _learnt(_answers(0.2, 0.6)), Say()
    say.observe({"batch": _answers(0.4, 0.4)})
    other.load_state_dict(say.state_dict())
    for name in ("network", "batch"):
        for found, expected in zip(other.weights(name), say.weights(name)):
            assert torch.equal(found, expected)
