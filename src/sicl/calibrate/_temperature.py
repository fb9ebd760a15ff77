"""Fit one temperature: a bounded search on log T that always ends in a finite answer."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from sicl.errors import InputError

LOWEST, HIGHEST = 0.1, 100.0
"""The bounds of every temperature search."""

FEWEST = 10
"""With fewer samples than this the temperature stays at 1."""

_HALVINGS = 26


@dataclass(frozen=True)
class TemperatureFit:
    """A temperature, and what was wrong with the data it was fitted on, if anything.

    Args:
        temperature: in [LOWEST, HIGHEST].
        problem: an empty string, or why the likelihood does not determine the temperature.
    """

    temperature: float
    problem: str = ""


def require_temperature(value: float) -> float:
    """Return a temperature that a search can have found, or raise `InputError`."""
    if not LOWEST <= value <= HIGHEST:
        raise InputError(f"`temperature` of the state must lie in [{LOWEST:g}, {HIGHEST:g}], got {value!r}.")
    return value


@torch.no_grad()
def fit_temperature(logits: Tensor, labels: Tensor) -> TemperatureFit:
    """Return the temperature that minimises the negative log-likelihood of `labels` under logits / T.

    The NLL is convex in 1/T, so its slope changes sign once: bisection on log T finds it without a start,
    a step size or a stopping rule, and a minimum outside the bounds gives the nearer bound.

    Args:
        logits: N x C.
        labels: int64, N, in 0..C-1.

    Raises:
        InputError: the shapes do not fit.
    """
    if logits.ndim != 2 or labels.shape != logits.shape[:1]:
        raise InputError(
            f"A temperature is fitted on N x C logits and N labels, got {tuple(logits.shape)} and "
            f"{tuple(labels.shape)}."
        )
    if len(labels) < FEWEST:
        return TemperatureFit(1.0, f"only {len(labels)} samples, at least {FEWEST} are needed")
    if logits.shape[1] < 2:
        return TemperatureFit(1.0, "there is only one class")
    # Relative to the label's own logit; then NLL = mean log sum exp(beta margin), with beta = 1 / T.
    margins = logits.float() - logits.float().gather(1, labels.unsqueeze(1))
    low, high = margins.new_full((), math.log(LOWEST)), margins.new_full((), math.log(HIGHEST))
    for _ in range(_HALVINGS):  # no synchronisation with the device inside
        middle = (low + high) / 2
        too_cold = _slope(margins, torch.exp(-middle)) > 0
        low, high = torch.where(too_cold, middle, low), torch.where(too_cold, high, middle)
    right = (margins.amax(dim=1) <= 0).float().mean()
    alike = (labels == labels[0]).float().mean()
    found, share, same = torch.stack([torch.exp((low + high) / 2), right, alike]).tolist()
    temperature = min(max(found, LOWEST), HIGHEST)
    return TemperatureFit(temperature, _problem(share, same == 1.0, temperature))


def _slope(margins: Tensor, beta: Tensor) -> Tensor:
    """The derivative of the NLL by beta."""
    return ((beta * margins).softmax(dim=1) * margins).sum(dim=1).mean()


def _problem(right: float, one_class: bool, temperature: float) -> str:
    if right in (0.0, 1.0):
        return "all predictions are right" if right else "all predictions are wrong"
    if one_class:
        return "all labels are one class"
    if not 1.001 * LOWEST < temperature < HIGHEST / 1.001:
        return f"the best temperature lies outside [{LOWEST:g}, {HIGHEST:g}]"
    return ""


class Warned:
    """Warns about ill-posed fits, once for each live calibrator.

    Args:
        calibrator: its name, for the message.
    """

    def __init__(self, calibrator: str) -> None:
        self.calibrator = calibrator
        self.done = False

    def about(self, fit: TemperatureFit) -> None:
        """Warn if this is the first fit with a problem."""
        if fit.problem and not self.done:
            self.done = True
            warnings.warn(
                f"`{self.calibrator}` cannot determine a temperature ({fit.problem}); it uses "
                f"T = {fit.temperature:.3g}.",
                stacklevel=2,
            )
