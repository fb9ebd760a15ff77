"""From the predictions of one run to every number of its record."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sicl import metrics
from sicl.types import OOD_LABEL

MAX_POINTS = 50
MAX_SEGMENTS = 200
MIN_WINDOW = 256

Labels = NDArray[np.int64]
Numbers = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Samples:
    """What one run said about every sample, in stream order.

    Args:
        labels: N true classes; `OOD_LABEL` for out-of-distribution samples.
        domains: N domain names.
        batch_sizes: the sizes of the batches, summing to N.
        predicted: by calibrator, N predicted classes.
        confidence: by calibrator, N float32 in [0, 1].
    """

    labels: Labels
    domains: NDArray[np.str_]
    batch_sizes: Labels
    predicted: dict[str, Labels]
    confidence: dict[str, NDArray[np.float32]]


def measure(samples: Samples) -> Numbers:
    """Return accuracy, counts, domain segments and the metrics of every calibrator, ready for JSON.

    Out-of-distribution samples count for `ood_auroc` and `n_ood` only. A metric that the samples leave
    undefined (the AUROC when everything is right, any error when all samples are OOD) is None.
    """
    known = samples.labels != OOD_LABEL
    calibrators = {name: _calibrator(samples, name, known) for name in samples.confidence}
    first = next(iter(calibrators.values()))
    return {
        "accuracy": first["accuracy"],
        "n": int(known.sum()),
        "n_ood": int((~known).sum()),
        "segments": _segments(samples.domains[known]),
        "calibrators": calibrators,
    }


def _calibrator(samples: Samples, name: str, known: NDArray[np.bool_]) -> Numbers:
    scores = torch.from_numpy(samples.confidence[name])
    numbers: Numbers = {"ood_auroc": _auroc(scores, torch.from_numpy(known))}
    confidence = scores[torch.from_numpy(known)]
    correct = torch.from_numpy((samples.predicted[name] == samples.labels)[known])
    if len(correct) == 0:
        return {"accuracy": None, **numbers}
    steps = np.repeat(np.arange(len(samples.batch_sizes)), samples.batch_sizes)[known]
    return {
        "accuracy": float(correct.double().mean()),
        **_scalars(confidence, correct),
        "cumulative_ece": _cumulative(confidence, correct, steps),
        **numbers,
        "reliability": _reliability(confidence, correct),
        "over_time": _over_time(confidence, correct),
        "risk_coverage": _risk_coverage(confidence, correct),
        "by_domain": _by_domain(confidence, correct, samples.domains[known]),
    }


def _scalars(confidence: Tensor, correct: Tensor) -> Numbers:
    parts = metrics.ece_by_correctness(confidence, correct)
    return {
        "ece": metrics.expected_calibration_error(confidence, correct),
        "ece_mass": metrics.expected_calibration_error(confidence, correct, bins="mass"),
        "mce": metrics.maximum_calibration_error(confidence, correct),
        "brier": metrics.brier_score(confidence, correct),
        "nll": metrics.negative_log_likelihood(confidence, correct),
        "auroc": _auroc(confidence, correct),
        "aurc": metrics.aurc(confidence, correct),
        "ece_right": parts.right,
        "ece_wrong": parts.wrong,
        "mean_confidence": float(confidence.double().mean()),
    }


def _auroc(scores: Tensor, positive: Tensor) -> float | None:
    both = bool(positive.any()) and not bool(positive.all())
    return metrics.auroc(scores, positive) if both else None


def _cumulative(confidence: Tensor, correct: Tensor, steps: Labels) -> float:
    meter = metrics.CumulativeEce()
    _, sizes = np.unique(steps, return_counts=True)
    parts = torch.split(confidence, sizes.tolist()), torch.split(correct, sizes.tolist())
    for part in zip(*parts):
        meter.update(*part)
    return meter.compute()


def _reliability(confidence: Tensor, correct: Tensor) -> Numbers:
    table = metrics.reliability_bins(confidence, correct)
    return {
        "lower": _rounded(table.lower),
        "upper": _rounded(table.upper),
        "count": table.count.tolist(),
        "confidence": _rounded(table.confidence),
        "accuracy": _rounded(table.accuracy),
    }


def _over_time(confidence: Tensor, correct: Tensor) -> Numbers:
    """Return sliding-window accuracy, confidence and ECE at up to 50 ends; `window` samples each."""
    n = len(confidence)
    window = min(n, max(MIN_WINDOW, n // 20))
    stride = max(1, -(-(n - window) // (MAX_POINTS - 1)))
    sliding = metrics.sliding_window_ece(confidence, correct, window=window, stride=stride)
    rows = torch.stack([correct.double(), confidence.double()])
    running = torch.cat([torch.zeros(2, 1, dtype=torch.float64), rows.cumsum(1)], dim=1)
    start = (sliding.end - window).clamp(min=0)
    means = (running[:, sliding.end] - running[:, start]) / (sliding.end - start)
    return {
        "window": window,
        "end": sliding.end.tolist(),
        "accuracy": _rounded(means[0]),
        "confidence": _rounded(means[1]),
        "ece": _rounded(sliding.ece),
    }


def _risk_coverage(confidence: Tensor, correct: Tensor) -> Numbers:
    risk = metrics.expected_risk(confidence, correct)
    n = len(risk)
    accepted = torch.tensor(sorted({max(1, round(n * i / MAX_POINTS)) for i in range(1, MAX_POINTS + 1)}))
    return {"coverage": _rounded(accepted / n), "risk": _rounded(risk[accepted - 1])}


def _by_domain(confidence: Tensor, correct: Tensor, domains: NDArray[np.str_]) -> Numbers:
    table: Numbers = {}
    for domain in dict.fromkeys(domains.tolist()):
        chosen = torch.from_numpy(domains == domain)
        part = confidence[chosen], correct[chosen]
        table[domain] = {
            "n": int(chosen.sum()),
            "accuracy": float(part[1].double().mean()),
            "ece": metrics.expected_calibration_error(*part),
        }
    return table


def _segments(domains: NDArray[np.str_]) -> list[tuple[str, int]]:
    """Return (domain, end) of every run of one domain; nothing for a stream that mixes them."""
    segments, end = [], 0
    for domain, run in groupby(domains.tolist()):
        end += sum(1 for _ in run)
        segments.append((domain, end))
    return segments if len(segments) <= MAX_SEGMENTS else []


def _rounded(values: Tensor) -> list[float]:
    return [round(value, 6) for value in values.tolist()]
