"""With labelled source data: a small map from the witnesses' answers to correctness."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from sicl.adapt import Adapter, Moment
from sicl.calibrate._passes import draw_source
from sicl.corruptions import VALIDATION_CORRUPTIONS, corrupt
from sicl.errors import DataError
from sicl.types import SourceData

SHIFTS = ((None, 0), *((name, severity) for severity in (3, 5) for name in VALIDATION_CORRUPTIONS))
"""The streams made of the source data: clean, and corrupted as no benchmark's test streams are."""
IMAGES, BATCH = 128, 64
"""Images of a stream, and of its batches."""
PENALTY = 0.08
"""Of leaving the label-free confidence, for each sample that was fitted on."""
_CLIP = 0.01
_STEPS = 25


class Trial(Protocol):
    """What the map is fitted on: a calibration without one."""

    def features(self, moment: Moment) -> Tensor:
        """Return the features of a batch (N x D)."""


class Fitted:
    """P(right) = sigmoid(w . x + c), a logistic regression on the answers.

    x are the log-odds of the label-free confidence and of every answer, and the mean of the first over the recent
    stream, which tells how hard it is. A ridge pulls w toward the label-free confidence alone, so little data changes
    little.

    Args:
        centre: of the features.
        scale: of the features.
        weights: of the scaled features, and the constant.
    """

    def __init__(self, centre: Tensor, scale: Tensor, weights: Tensor) -> None:
        self.centre, self.scale, self.weights = centre, scale, weights

    def __call__(self, features: Tensor) -> Tensor:
        """Return the probability that each prediction is right, of N x D features."""
        scaled = (features - self.centre) / self.scale
        return (scaled @ self.weights[:-1] + self.weights[-1]).sigmoid()

    @classmethod
    def fit(cls, features: Tensor, right: Tensor) -> Fitted:
        """Return the map from N x D features (first the label-free confidence) to N times right or wrong."""
        x, y = features.double().cpu(), right.double().cpu()
        centre, scale = x.mean(dim=0), x.std(dim=0).clamp_min(1e-3)
        x = torch.cat([(x - centre) / scale, torch.ones(len(x), 1, dtype=x.dtype)], dim=1)
        prior = torch.zeros(x.shape[1], dtype=x.dtype)
        prior[0], prior[-1] = scale[0], centre[0]
        ridge = torch.full_like(prior, PENALTY * len(x))
        ridge[-1] = 1e-6
        weights = prior.clone()
        for _ in range(_STEPS):
            p = (x @ weights).sigmoid()
            slope = x.T @ (p - y) + ridge * (weights - prior)
            bend = (x * (p * (1 - p)).unsqueeze(1)).T @ x + torch.diag(ridge)
            weights = weights - torch.linalg.solve(bend, slope)
        return cls(*(tensor.to(features.device, torch.float32) for tensor in (centre, scale, weights)))

    def state_dict(self) -> dict[str, Any]:
        """Return the map."""
        return {"centre": self.centre, "scale": self.scale, "weights": self.weights}


def log_odds(probability: Tensor) -> Tensor:
    """Return log p / (1 - p), of probabilities kept away from 0 and 1."""
    p = probability.clamp(_CLIP, 1 - _CLIP)
    return (p / (1 - p)).log()


def fit_on_source(
    adapter: Adapter, source: SourceData, make: Callable[[Adapter], Trial], seed: int
) -> Fitted:
    """Adapt a copy of the adapter to shifted copies of the source data, and fit the map on what SICL says of them.

    Raises:
        DataError: there are too few source samples.
    """
    if len(source) < IMAGES:
        raise DataError(
            f"`source` must have at least {IMAGES} labelled images to fit SICL's map on (two batches of each of "
            f"{len(SHIFTS)} streams made of them), got {len(source)}; attach without it for the label-free confidence."
        )
    trial = copy.deepcopy(adapter)
    rows: list[Tensor] = []
    right: list[Tensor] = []
    for number, (name, severity) in enumerate(SHIFTS):
        trial.reset()
        look = partial(_look, make(trial), rows, right)
        drawn = draw_source(source, IMAGES, seed + number)
        for images, labels in _batches(drawn, name, severity, seed):
            trial.step(images, partial(look, labels))
    return Fitted.fit(torch.cat(rows), torch.cat(right))


def _look(
    calibration: Trial, rows: list[Tensor], right: list[Tensor], labels: Tensor, moment: Moment
) -> None:
    rows.append(calibration.features(moment))
    right.append(moment.logits.argmax(dim=1) == labels.to(moment.logits.device))


def _batches(
    source: SourceData, name: str | None, severity: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    images = source.images
    if name is not None:
        pixels = (images.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1).contiguous()
        made = corrupt(pixels, name, severity=severity, seed=seed)
        images = made.permute(0, 3, 1, 2).to(images.dtype).div(255).contiguous()
    yield from zip(torch.split(images, BATCH), torch.split(source.labels, BATCH))
