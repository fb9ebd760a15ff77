"""`SICL(budget_ms=...)`: milliseconds buy variants."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from calibrate_networks import images, small_net, source_data

import sicl
from sicl.calibrate import Calibrated
from sicl.calibrate.sicl.budget import COUNTS, RECENT, Latency, Rung, ladder
from sicl.errors import OptionError


class Clock:
    """A clock by which a batch takes what `cost` says of what is bought."""

    def __init__(self, latency: Latency, cost: Callable[[Rung], float]) -> None:
        self.latency, self.cost = latency, cost
        self.seconds, self._looks = 0.0, 0

    def __call__(self) -> float:
        self._looks += 1
        if self._looks % 2 == 0:
            self.seconds += self.cost(self.latency.rung) / 1000
        return self.seconds


def by_the_pass(rung: Rung) -> float:
    """A millisecond a pass, and nine beside."""
    return 9.0 + rung.price


def _latency(budget: float, cost: Callable[[Rung], float] = by_the_pass) -> Latency:
    latency = Latency(budget, ladder(sicl.SICL()))
    latency.clock = Clock(latency, cost)
    return latency


def _chosen(latency: Latency, batches: int, rows: int = 16) -> list[Rung]:
    rungs = []
    for _ in range(batches):
        with latency.spent_on(torch.zeros(rows, 3, 8, 8)):
            rungs.append(latency.rung)
    return rungs


def _trusted(budget: float, spec: sicl.SICL | None = None) -> Calibrated:
    trusted = replace(spec or sicl.SICL(), budget_ms=budget).attach(small_net())
    latency = trusted.calibration.latency
    latency.clock = Clock(latency, by_the_pass)
    return trusted


def test_a_budget_buys_as_many_variants_as_fit_and_says_how_many() -> None:
    """Of 1 + 1 + 1 + 2 + n passes, ten milliseconds beside the fixed nine buy each of two witnesses four."""
    trusted = _trusted(19.0)
    bought = [int(trusted(images(16, seed=i)).signals["variants"]) for i in range(10)]
    assert bought[0] == 0
    assert bought[-1] == 8


def test_no_batch_exceeds_the_budget_where_times_grow_with_the_passes() -> None:
    """After the two cheapest, what the next would cost is known before it is bought."""
    assert max(map(by_the_pass, _chosen(_latency(19.0), 100))) <= 19.0


@pytest.mark.parametrize(("budget", "rung"), [(12.0, Rung(("mirror",))), (10.5, Rung(())), (0.001, Rung(()))])
def test_a_budget_below_a_variant_buys_fewer_questions_and_at_last_the_softmax(
    budget: float, rung: Rung
) -> None:
    """Questions go one by one; the softmax is never left out."""
    assert _chosen(_latency(budget), 20)[-1] == rung


def test_a_budget_that_is_not_exhausted_buys_the_dearest() -> None:
    """There is nothing dearer than all questions with the most variants."""
    assert _chosen(_latency(1000.0), 30)[-1] == Rung(("mirror", "crop", "repair", "style"), COUNTS[-1])


def test_a_batch_of_another_size_is_measured_by_itself() -> None:
    """Times of 64 images say nothing about one."""
    latency = _latency(1000.0)
    _chosen(latency, 30, rows=64)
    assert _chosen(latency, 1, rows=1) == [latency.rungs[0]]
    assert _chosen(latency, 1, rows=65)[0].drawn == COUNTS[-1]


def test_the_first_time_of_a_price_does_not_count() -> None:
    """It holds tracing and tuning: by it nothing would ever be bought again."""
    slow_once: set[Rung] = set()

    def cost(rung: Rung) -> float:
        first = rung not in slow_once
        slow_once.add(rung)
        return 10_000.0 if first else by_the_pass(rung)

    assert _chosen(_latency(19.0, cost), 30)[-1].drawn == 4


def test_a_machine_that_was_slow_for_a_while_is_believed_again() -> None:
    """What was too slow is tried again when its times are old."""
    slow = [False]
    latency = _latency(19.0, lambda rung: by_the_pass(rung) * (3 if slow[0] else 1))
    before = _chosen(latency, 20)[-1]
    slow[0] = True
    during = _chosen(latency, 20)[-1]
    slow[0] = False
    assert during == Rung(())
    assert _chosen(latency, 3 * RECENT)[-1] == before


def test_the_same_times_give_the_same_confidences() -> None:
    """The choice depends on nothing but the clock."""
    runs = [
        [run(images(16, seed=i)).confidence for i in range(6)] for run in (_trusted(25.0), _trusted(25.0))
    ]
    assert all(map(torch.equal, *runs))


def test_a_saved_state_goes_on_where_other_questions_were_bought() -> None:
    """What was learnt from fewer questions is forgotten when more are asked, in a loaded state too."""
    poor, rich = _trusted(12.0), _trusted(40.0)
    for i in range(8):
        poor(images(16, seed=i))
        rich(images(16, seed=i))
    rich.load_state_dict(poor.state_dict())
    assert len(rich(images(16, seed=9))) == 16
    assert len(copy.deepcopy(rich)(images(16, seed=9))) == 16


@pytest.mark.slow
def test_a_fitted_map_waits_for_all_questions() -> None:
    """Where a budget leaves questions out, the map that was fitted with them is not asked."""
    spec, model = sicl.SICL(budget_ms=12.0), small_net()
    trusted = spec.attach(model, source=source_data(model, 128))
    trusted.calibration.latency.clock = Clock(trusted.calibration.latency, by_the_pass)
    assert len([trusted(images(16, seed=i)) for i in range(4)][-1]) == 16


def test_the_printed_formula_keeps_all_its_questions() -> None:
    """It has no answer without content variants: the least that can be bought is one variant of each."""
    assert ladder(sicl.SICL.paper())[0] == Rung(("style", "content"), 1)
    trusted = _trusted(0.001, sicl.SICL.paper())
    assert [trusted(images(16, seed=i)).signals["variants"].item() for i in range(5)] == [1, 1, 2, 2, 1]


@pytest.mark.parametrize("budget", [0, -1.0, float("nan"), float("inf"), "5", True])
def test_a_budget_is_a_positive_number(budget: object) -> None:
    """Anything else is refused in one sentence."""
    with pytest.raises(OptionError, match="budget_ms"):
        sicl.SICL(budget_ms=budget)


def test_an_adaptive_number_of_variants_has_no_budget() -> None:
    """Two rules for one number are refused."""
    with pytest.raises(OptionError, match="leave one out"):
        sicl.SICL(budget_ms=5.0, variants="adaptive")
