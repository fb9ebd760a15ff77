"""Metrics of hostile tensors: a finite number, or a sentence."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fuzzing import Fuzzer, hostile
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sicl import metrics

CASES, EXAMPLES = 6000, 1000

BINNED = (
    metrics.expected_calibration_error,
    metrics.maximum_calibration_error,
    metrics.ece_by_correctness,
    metrics.reliability_bins,
)
SCORES = (
    metrics.brier_score,
    metrics.negative_log_likelihood,
    metrics.auroc,
    metrics.aurc,
    metrics.expected_risk,
    metrics.risk_coverage_curve,
)


def _values(rng: random.Random, shape: tuple[int, ...]) -> Any:
    """Return numbers as a tensor, an array or a list, some of them hostile."""
    made = torch.rand(shape, generator=torch.Generator().manual_seed(rng.randrange(2**32)))
    kind = rng.randrange(9)
    if kind == 0 and made.numel():
        made.view(-1)[rng.randrange(made.numel())] = rng.choice([float("nan"), float("inf"), -1.0, 2.0, 1e38])
    changes: list[Callable[[Tensor], Any]] = [
        lambda t: t,
        lambda t: t.numpy(),
        lambda t: t.tolist(),
        lambda t: t.to(torch.complex64),
        lambda t: t.to_sparse() if t.ndim else t,
        lambda t: t.to("meta"),
        lambda t: t.requires_grad_(),
        lambda t: t.double() * 10.0 ** rng.randrange(300),
    ]
    return changes[rng.randrange(len(changes))](made) if rng.random() < 0.3 else made


def _shape(rng: random.Random, *wanted: int) -> tuple[int, ...]:
    """Return the wanted shape, sometimes another one."""
    if rng.random() < 0.8:
        return wanted
    return tuple(rng.choice([0, 1, 2, 5]) for _ in range(rng.randrange(5)))


def _maybe(rng: random.Random, value: Any) -> Any:
    return hostile(rng) if rng.random() < 0.1 else value


def _call(rng: random.Random) -> Callable[[], Any]:
    n = rng.choice([1, 2, 7, 30])
    first = _maybe(rng, _values(rng, _shape(rng, n)))
    second = _maybe(rng, torch.tensor([rng.random() < 0.5 for _ in range(n)]))
    bins = _maybe(rng, rng.choice([1, 2, 15, 0, -3]))
    kind = rng.randrange(8)
    if kind == 0:
        return lambda: rng.choice(BINNED)(
            first, second, n_bins=bins, bins=_maybe(rng, rng.choice(["width", "mass"]))
        )
    if kind == 1:
        return lambda: rng.choice(SCORES)(first, second)
    if kind == 2:
        return lambda: metrics.negative_log_likelihood(first, second, eps=_maybe(rng, 1e-3))
    if kind == 3:
        return lambda: metrics.threshold_for_risk(first, second, _maybe(rng, 0.3))
    if kind == 4:
        window, stride = _maybe(rng, 5), _maybe(rng, 2)
        return lambda: metrics.sliding_window_ece(first, second, window=window, stride=stride, n_bins=bins)
    if kind == 5:
        return lambda: _cumulative(bins, first, second)
    return lambda: _variance(rng)


def _cumulative(bins: Any, first: Any, second: Any) -> float:
    ece = metrics.CumulativeEce(n_bins=bins)
    ece.update(first, second)
    return ece.compute() + ece.current()


def _variance(rng: random.Random) -> Any:
    n, d, v = rng.choice([4, 9]), rng.choice([1, 3]), 2
    embeddings, labels = _maybe(rng, _values(rng, _shape(rng, n, d))), _maybe(rng, torch.arange(n) % 2)
    if rng.random() < 0.4:
        features = _maybe(rng, _values(rng, _shape(rng, n, 3, 4)))
        if rng.random() < 0.3:
            return metrics.gram_matrix(features)
        return metrics.style_variance(features, _maybe(rng, _values(rng, _shape(rng, v, n, 3, 4))))
    fitted = metrics.ClassStatistics.fit(
        embeddings, labels, n_classes=_maybe(rng, 2), shrinkage=_maybe(rng, rng.choice([0.0, 0.1, 1.0]))
    )
    if rng.random() < 0.3:
        return metrics.mahalanobis_distance(_maybe(rng, embeddings), _maybe(rng, labels), fitted)
    return metrics.content_variance(
        embeddings, _maybe(rng, _values(rng, _shape(rng, v, n, d))), labels, fitted
    )


def _finite(value: Any) -> bool:
    if value is None or isinstance(value, str):
        return True
    if dataclasses.is_dataclass(value):
        return all(_finite(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, tuple):
        return all(map(_finite, value))
    return bool(np.isfinite(np.asarray(torch.as_tensor(value).detach())).all())


@pytest.mark.slow
def test_hostile_arguments_give_a_finite_number_or_a_sentence() -> None:
    """Every metric, with tensors of any shape, type, layout and device, and options of any kind."""
    fuzzer = Fuzzer()
    for number in range(CASES):
        rng = random.Random(number)
        value = fuzzer.run(f"case {number}", _call(rng))
        if value is not None and not _finite(value):
            fuzzer.fault(f"case {number}", f"not finite: {value}")
    fuzzer.finish(CASES)


@pytest.mark.slow
@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.tuples(st.floats(), st.one_of(st.booleans(), st.integers(-1, 2))), max_size=20),
    st.integers(-2, 40),
)
def test_any_floats_give_a_finite_number_or_a_sentence(pairs: list[tuple[float, int]], n_bins: int) -> None:
    """hypothesis looks for the floats that break a metric: denormals, negative zero, NaN, the edges of bins."""
    fuzzer = Fuzzer()
    confidence, correct = (torch.tensor([float(pair[i]) for pair in pairs]) for i in (0, 1))
    for metric in (*SCORES, metrics.ece_by_correctness):
        value = fuzzer.run(f"{metric.__name__} {pairs}", lambda metric=metric: metric(confidence, correct))
        assert _finite(value), (metric, pairs)
    value = fuzzer.run("ece", lambda: metrics.expected_calibration_error(confidence, correct, n_bins=n_bins))
    assert value is None or 0 <= value <= 1
    assert not fuzzer.faults, fuzzer.faults
