"""Made-up but plausible records for the report tests."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from sicl.bench.paper import CORRUPTIONS
from sicl.bench.run.record import Record, Recorder
from sicl.types import Batch, Prediction

# How far each calibrator's confidence lies from the truth: an exponent on it and a share of noise.
SHAPES = {
    "softmax": (0.25, 0.15),
    "temperature_scaling": (0.45, 0.15),
    "mc_dropout": (0.55, 0.2),
    "transcal": (2.4, 0.2),
    "pseudocal": (0.8, 0.2),
    "sicl_paper": (1.25, 0.12),
    "sicl": (1.02, 0.1),
}


@cache
def cell(corruption: str = "fog", seed: int = 0, n: int = 1600, **identity: str) -> Record:
    """Return the record of one simulated benign stream of n samples."""
    generator = torch.Generator().manual_seed(1000 * seed + CORRUPTIONS.index(corruption))
    difficulty = 0.35 + 1.2 * torch.rand(1, generator=generator).item()
    recorder = Recorder(
        **{
            "dataset": "cifar10-c",
            "model": "resnet18",
            "method": "tent",
            "stream": "benign",
            "seed": seed,
            "corruption": corruption,
            "severity": 5,
            **identity,
        }
    )
    for step in range(0, n, 64):
        chance = torch.rand(64, generator=generator) ** (difficulty * (1.2 - 0.5 * step / n))
        right = torch.rand(64, generator=generator) < chance
        predictions = {}
        for name, (power, noise) in SHAPES.items():
            blur = noise * torch.randn(64, generator=generator)
            said = (chance + blur).clamp(0.02, 1) ** (power * (1 - 0.35 * (power < 1) * step / n))
            votes = (20 * said).round() / 20 if name == "sicl_paper" else said
            predictions[name] = Prediction((~right).long(), votes.clamp(0, 1), torch.zeros(64, 2))
        batch = Batch(torch.zeros(64, 3, 1, 1), torch.zeros(64, dtype=torch.long), (corruption,) * 64)
        recorder.add(batch, predictions)
    return recorder.finish(**details(seed))


def details(seed: int) -> dict[str, Any]:
    """Return a configuration and environment as the benchmark would write them."""
    return {
        "spec": {"method": {"name": "tent", "lr": 0.001, "predict": "after"}, "batch_size": 64, "seed": seed},
        "environment": {"torch": "2.6.0", "python": "3.12.4", "device": "cpu"},
        "timing": {"adapt_s": 1.5 + seed, "calibrate_s": 7.25},
        "data": {"cifar10-c": {"source": "made", "sha256": "0f" * 32}},
    }


def some(corruptions: tuple[str, ...] = CORRUPTIONS[:4], **identity: str) -> list[Record]:
    """Return a handful of records, as `sicl demo` makes them."""
    return [cell(corruption, **identity) for corruption in corruptions]


def failed(corruption: str = "snow", error: str = "CUDA out of memory <64 GiB>.") -> Record:
    """Return the record of a cell that failed."""
    blank = replace(cell(), calibrators={}, accuracy=None, n=0, segments=[])
    return replace(blank, corruption=corruption, status="failed", error=error)


def many(n: int = 1000) -> list[Record]:
    """Return n records over several data sets, models, methods, corruptions and seeds."""
    made = []
    settings = [
        (dataset, model, method, corruption, seed)
        for seed in range(3)
        for dataset in ("cifar10-c", "cifar100-c", "imagenet-c")
        for model in ("resnet18", "resnet50", "vit")
        for method in ("source", "tent", "eata", "sar", "rotta", "sotta")
        for corruption in CORRUPTIONS
    ]
    for i, (dataset, model, method, corruption, seed) in enumerate(settings[:n]):
        base = cell(CORRUPTIONS[i % 15])
        made.append(
            replace(base, dataset=dataset, model=model, method=method, corruption=corruption, seed=seed)
        )
    return made
