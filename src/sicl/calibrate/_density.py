"""How much more often the target domain shows a feature vector than the source: a density ratio."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

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
