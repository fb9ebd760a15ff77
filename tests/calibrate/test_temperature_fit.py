"""The temperature search: right where the data determine it, finite where they do not."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from torch import Tensor

from sicl.calibrate._temperature import HIGHEST, LOWEST, TemperatureFit, Warned, fit_temperature
from sicl.errors import InputError


def _drawn(temperature: float, n: int = 100_000, classes: int = 5) -> tuple[Tensor, Tensor]:
    """Logits, and labels drawn from their softmax at a temperature."""
    generator = torch.Generator().manual_seed(3)
    logits = 3 * temperature * torch.randn(n, classes, generator=generator)
    labels = torch.multinomial((logits / temperature).softmax(dim=1), 1, generator=generator).squeeze(1)
    return logits, labels


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5, 20.0])
def test_a_known_temperature_is_recovered_within_one_percent(temperature: float) -> None:
    """Labels drawn at a temperature give that temperature back."""
    fit = fit_temperature(*_drawn(temperature))
    assert fit.temperature == pytest.approx(temperature, rel=0.01)
    assert not fit.problem


def test_the_fit_is_the_minimum_that_scipy_finds() -> None:
    """The same likelihood, minimised by somebody else's bounded search."""
    logits, labels = _drawn(1.7, n=400)

    def nll(log_t: float) -> float:
        return float(torch.nn.functional.cross_entropy(logits.double() / torch.tensor(log_t).exp(), labels))

    best = minimize_scalar(nll, bounds=(-2, 4), method="bounded", options={"xatol": 1e-7})
    expected = float(torch.tensor(best.x).exp())
    assert fit_temperature(logits, labels).temperature == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("logits", "labels", "problem", "temperature"),
    [
        (3 * torch.eye(4).repeat(5, 1), torch.arange(4).repeat(5), "all predictions are right", LOWEST),
        (
            3 * torch.eye(4).repeat(5, 1),
            torch.arange(1, 5).repeat(5) % 4,
            "all predictions are wrong",
            HIGHEST,
        ),
        (torch.randn(20, 1), torch.zeros(20, dtype=torch.int64), "there is only one class", 1.0),
        (torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0]), "only 2 samples", 1.0),
    ],
    ids=["all right", "all wrong", "one class", "two samples"],
)
def test_degenerate_input_gives_a_finite_temperature_and_a_reason(
    logits: Tensor, labels: Tensor, problem: str, temperature: float
) -> None:
    """All right, all wrong, one class, two samples."""
    fit = fit_temperature(logits, labels)
    assert problem in fit.problem
    assert fit.temperature == pytest.approx(temperature, rel=1e-3)


def test_labels_of_one_class_are_a_problem() -> None:
    """Its likelihood says little about the other classes."""
    logits = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    assert fit_temperature(logits, torch.zeros(50, dtype=torch.int64)).problem == "all labels are one class"


@given(st.integers(0, 10_000), st.floats(-8, 8), st.integers(1, 6), st.integers(1, 40))
@settings(max_examples=40, deadline=None)
def test_any_logits_give_a_temperature_within_bounds(seed: int, power: float, classes: int, n: int) -> None:
    """From nearly flat logits to huge ones, right or wrong."""
    generator = torch.Generator().manual_seed(seed)
    logits = 10**power * torch.randn(n, classes, generator=generator)
    labels = torch.randint(classes, (n,), generator=generator)
    assert LOWEST <= fit_temperature(logits, labels).temperature <= HIGHEST


def test_a_calibrator_warns_once() -> None:
    """The second bad fit of the same live calibrator is silent."""
    warned = Warned("PseudoCal")
    warned.about(TemperatureFit(1.0))
    with pytest.warns(
        UserWarning, match=r"`PseudoCal` cannot determine a temperature \(too odd\); it uses T = 2"
    ):
        warned.about(TemperatureFit(2.0, "too odd"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warned.about(TemperatureFit(2.0, "too odd"))


def test_shapes_that_do_not_fit_are_refused() -> None:
    """N x C logits need N labels."""
    with pytest.raises(InputError, match=r"got \(3, 2\) and \(4,\)"):
        fit_temperature(torch.zeros(3, 2), torch.zeros(4, dtype=torch.int64))
