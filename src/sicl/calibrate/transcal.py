"""TransCal: carry a source model's accuracy over to the target by importance weights, and match it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor, nn

from sicl.adapt import Adapter, Moment
from sicl.calibrate._base import Calibration, Calibrator, require_source
from sicl.calibrate._memory import Recent
from sicl.calibrate._passes import as_it_predicts, batches, draw_source, is_due
from sicl.calibrate._temperature import HIGHEST, Warned, fit_temperature, require_temperature
from sicl.engine.head import find_head, penultimate
from sicl.engine.variants import predicted_probability
from sicl.errors import InputError, require_positive
from sicl.types import SourceData


@dataclass(frozen=True, kw_only=True)
class TransCal(Calibrator):
    """Match the mean confidence to an importance-weighted estimate of the accuracy (Wang et al., 2020).

    A logistic regression on penultimate features tells source from stream; its odds weigh the errors on
    labelled source data, control variates lower the variance, and (T, lambda) minimise
    |mean confidence on the stream - estimated accuracy|, lambda tempering the weights.

    Args:
        every: refit every so many batches (and at batches 0, 1, 2, 4, ... before the first of these).
        window: how many recent stream samples to fit on, the current batch always among them; a window no
            larger than the batch is the batch alone.
        source_samples: the most labelled source samples to use (drawn at random if there are more); they go
            through the current network, as it predicts, at every refit.
        penalty: of the logistic regression (scikit-learn's 1 / C).
        head: the module whose input are the features; "auto" is the last linear layer called.
        batch_size: of the passes over source data.
        seed: of the draw of source samples.

    Raises:
        OptionError: a value is out of range.
        InputError: no `source` was given, or a single sample (on `attach`).
        UnsupportedModelError: "auto" found no linear layer.

    Differs from the reference implementation:
        - online: fits on a window of the stream and refits, because the model moves; features of the window
          are of the model of their time, those of source samples of the model of now;
        - only validation data is needed: the classifier of domains is cross-fitted on its two halves, where
          the reference fits it on training features;
        - the penalty is 0.03, chosen of 0.001 to 1 on the validation corruptions; the reference has 1.0;
        - both domains are weighted alike instead of resampled, and weights are kept within [1e-4, 1e4];
        - exact gradients go to SLSQP, and T is at most 100.
    """

    every: int = 10
    window: int = 1024
    source_samples: int = 1000
    penalty: float = 0.03
    head: str = "auto"
    batch_size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive(
            every=self.every,
            window=self.window,
            source_samples=self.source_samples,
            penalty=self.penalty,
            batch_size=self.batch_size,
        )

    def calibration(self, adapter: Adapter, *, source: SourceData | None = None) -> Calibration:
        """Return the live calibration; it keeps the source data."""
        source = require_source(source, calibrator="TransCal")
        if min(len(source), self.source_samples) < 2:
            raise InputError("`TransCal` needs at least 2 source samples, got 1; pass a larger `source`.")
        return _TransCalibration(self, source)


class _TransCalibration(Calibration):
    def __init__(self, spec: TransCal, source: SourceData) -> None:
        self.spec = spec
        self.source = draw_source(source, spec.source_samples, spec.seed)
        self.head: str | None = None if spec.head == "auto" else spec.head
        self.features, self.logits = Recent(spec.window), Recent(spec.window)
        self.warned = Warned("TransCal")
        self.reset()

    def reset(self) -> None:
        """Forget the stream."""
        self.features.clear()
        self.logits.clear()
        self.count = 0
        self.temperature, self.accuracy = 1.0, 0.0

    def confidence(self, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """Refit if it is time, and return the predicted class's probability at the temperature."""
        with as_it_predicts(moment.network):
            if self.head is None:
                self.head = find_head(moment.network, moment.images)
            features, _ = penultimate(moment.network, self.head, moment.images)
        self.features.add(features.float())
        self.logits.add(moment.logits)
        if is_due(self.count, self.spec.every):
            self._refit(moment.network, self.head)
        self.count += 1
        labels = moment.logits.argmax(dim=1)
        confidence = predicted_probability(moment.logits / self.temperature, labels)
        fitted = {"temperature": self.temperature, "estimated_accuracy": self.accuracy}
        return confidence, {k: confidence.new_full((), v) for k, v in fitted.items()}

    def _refit(self, network: nn.Module, head: str) -> None:
        with as_it_predicts(network):
            parts = batches(self.source.images, self.spec.batch_size, network)
            features, logits = map(torch.cat, zip(*(penultimate(network, head, part) for part in parts)))
        labels = self.source.labels.to(logits.device)
        ratio = density_ratio(features.float(), self.features.values(), penalty=self.spec.penalty)
        fit = fit_temperature(logits, labels)
        self.warned.about(fit)
        self.temperature, self.accuracy = match_accuracy(
            self.logits.values(),
            ratio,
            right=logits.argmax(dim=1) == labels,
            source_confidence=float((logits.float() / fit.temperature).softmax(dim=1).amax(dim=1).mean()),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the window and what was fitted on it."""
        return {
            "features": self.features.state_dict(),
            "logits": self.logits.state_dict(),
            "count": self.count,
            "temperature": self.temperature,
            "accuracy": self.accuracy,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.features.load_state_dict(state["features"])
        self.logits.load_state_dict(state["logits"])
        self.count, self.temperature = state["count"], require_temperature(state["temperature"])
        self.accuracy = state["accuracy"]


def match_accuracy(
    logits: Tensor, ratio: Tensor, *, right: Tensor, source_confidence: float
) -> tuple[float, float]:
    """Return (T, estimated accuracy): SLSQP over T in [1, 100] and lambda in [0, 1], from (2, 0.5).

    Args:
        logits: M x C, of the stream.
        ratio: N density ratios of the source samples.
        right: N booleans, whether the model is right on them.
        source_confidence: its mean confidence there after temperature scaling, the mean of `right`'s control.
    """
    # On the CPU: SLSQP asks a hundred times, and would wait for an accelerator every time.
    margins = (logits.float() - logits.float().amax(dim=1, keepdim=True)).cpu()
    # In float64 on the CPU: small data, and SLSQP stops at differences of 1e-6.
    weight, hits = ratio.double().cpu(), right.double().cpu()

    def gap(point: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        confidence, by_temperature = mean_confidence(margins, float(point[0]))
        with torch.enable_grad():
            power = torch.tensor(point[1], dtype=torch.float64, requires_grad=True)
            accuracy = weighted_accuracy(weight**power, hits, source_confidence)
            (by_power,) = torch.autograd.grad(accuracy, power)
        difference = confidence - float(accuracy.detach())
        return abs(difference), np.sign(difference) * np.array([by_temperature, -float(by_power)])

    found: Any = minimize(
        gap, np.array([2.0, 0.5]), jac=True, method="SLSQP", bounds=((1.0, HIGHEST), (0.0, 1.0))
    )
    temperature, power = (float(np.clip(v, *b)) for v, b in zip(found.x, ((1.0, HIGHEST), (0.0, 1.0))))
    return temperature, float(weighted_accuracy(weight**power, hits, source_confidence))


def mean_confidence(margins: Tensor, temperature: float) -> tuple[float, float]:
    """Return the mean largest softmax probability at a temperature, and its derivative by the temperature.

    Args:
        margins: M x C, logits less the row's largest.
        temperature: > 0.
    """
    scaled = margins / temperature
    odds = scaled.exp()
    largest = 1 / odds.sum(dim=1)
    slope = largest.square() * (odds * scaled).sum(dim=1) / temperature
    confidence, by_temperature = torch.stack([largest.mean(), slope.mean()]).tolist()
    return confidence, by_temperature


def weighted_accuracy(weight: Tensor, right: Tensor, source_confidence: float) -> Tensor:
    """Return 1 - the importance-weighted error, with two control variates of known mean.

    The first is the weight itself (mean 1), the second being right (mean: the calibrated confidence on source
    data); each enters with the coefficient that minimises the variance.
    """
    error = weight * (1 - right)
    first = _coefficient(error, weight)
    controlled = error + first * (weight - 1)
    second = _coefficient(controlled, right)
    return 1 - (controlled + second * (right - source_confidence)).mean()


def _coefficient(values: Tensor, control: Tensor) -> Tensor:
    """-Cov(values, control) / Var(control), or 0 where the control is constant."""
    centred = control - control.mean()
    variance = centred.square().sum()
    covariance = ((values - values.mean()) * centred).sum()
    # The guard is inside the division too: a gradient through 0 / 0 would be NaN.
    constant = variance < 1e-12
    return torch.where(constant, torch.zeros_like(variance), -covariance / (variance + constant))


_LARGEST = 1e4
"""Ratios are kept within [1 / this, this]: domains that do not overlap have no finite ratio."""

_MOST_STEPS = 200


def logistic_regression(
    features: Tensor, positive: Tensor, sample_weight: Tensor, *, penalty: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return (coefficients D, intercept) minimising sum weight * log-loss + penalty / 2 |coefficients|^2.

    The objective of scikit-learn's `LogisticRegression(C=1 / penalty)`, by L-BFGS. It runs on the CPU: its
    hundred small steps would spend their time waiting for an accelerator.

    Args:
        features: N x D.
        positive: N booleans.
        sample_weight: N.
        penalty: of the squared coefficients; the intercept is free.
    """
    values = features.float().cpu()
    sign = torch.where(positive.cpu(), -1.0, 1.0)
    weight = sample_weight.float().cpu()
    total = float(weight.sum())

    def objective(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        theta = torch.from_numpy(parameters).float()
        score = sign * torch.addmv(theta[-1:], values, theta[:-1])
        loss = weight.dot(F.softplus(score)) + 0.5 * penalty * theta[:-1].dot(theta[:-1])
        slope = weight * sign * score.sigmoid()
        gradient = torch.cat([values.T @ slope + penalty * theta[:-1], slope.sum().unsqueeze(0)])
        return float(loss) / total, gradient.double().numpy() / total

    start = np.zeros(values.shape[1] + 1)
    found: Any = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": _MOST_STEPS})
    theta = torch.from_numpy(found.x).float().to(features.device)
    return theta[:-1], theta[-1]


def density_ratio(source: Tensor, target: Tensor, *, penalty: float = 1.0) -> Tensor:
    """Return p_target / p_source at each source sample, never estimated by a classifier fitted on it.

    Source samples with even and odd positions take turns: a classifier of domains is fitted on the one half
    and the target, and weighs the other half. Both domains count alike in each fit, so the odds are the ratio.

    Args:
        source: N x D features, N >= 2.
        target: M x D features.
        penalty: of the logistic regression.
    """
    ratio = torch.empty(len(source), device=source.device)
    for fold in (0, 1):
        fitted = source[fold::2]
        larger = max(len(fitted), len(target))
        features = torch.cat([fitted, target])
        is_target = torch.arange(len(features), device=source.device) >= len(fitted)
        weight = torch.where(is_target, larger / len(target), larger / len(fitted))
        coefficients, intercept = logistic_regression(features, is_target, weight, penalty=penalty)
        log_odds = source[1 - fold :: 2].float() @ coefficients + intercept
        ratio[1 - fold :: 2] = log_odds.exp()
    return ratio.clamp(1 / _LARGEST, _LARGEST)
