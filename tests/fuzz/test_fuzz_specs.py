"""Specs of every kind, made with hostile values: refused in a sentence, or what they say they are."""

from __future__ import annotations

import dataclasses
import math
import random
from typing import Any

import pytest
import torch
from fuzzing import Fuzzer, hostile
from torch import Tensor, nn

from sicl import SourceData
from sicl.adapt import METHODS
from sicl.bench.paper.probes import Measured, Perturbed
from sicl.calibrate import CALIBRATORS
from sicl.data.make import Recipe
from sicl.engine.engine import EngineOptions
from sicl.models.checkpoint import ModelConfig
from sicl.streams import STREAMS
from sicl.train import TrainSpec

SPECS: list[type] = [
    *METHODS.values(),
    *CALIBRATORS.values(),
    *STREAMS.values(),
    Perturbed,
    Measured,
    TrainSpec,
    ModelConfig,
    EngineOptions,
    Recipe,
]
CASES, STEPS = 6000, 500


class Tiny(nn.Module):
    """A stage with a batch norm and a head, for 8-pixel images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layer1 = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.fc = nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.layer2(self.layer1(self.stem(images))).mean(dim=(2, 3)))
        return logits


def _made(kind: type, options: dict[str, Any]) -> Any:
    required = {"arch": "resnet18"} if kind is ModelConfig else {}
    return kind(**{**required, **options})


def _wrong(value: Any, annotation: str) -> str | None:
    """Say what is wrong with an accepted value, without the code under test."""
    if isinstance(value, float) and not math.isfinite(value):
        return "not finite"
    if annotation == "int" and abs(value) > 2**63:
        return "too large"
    plain = {"int": int, "float": (int, float), "str": str, "bool": bool}.get(annotation)
    if plain is not None and (
        not isinstance(value, plain) or isinstance(value, bool) != (annotation == "bool")
    ):
        return f"{type(value).__name__} for {annotation}"
    return None


def _sized(spec: Any) -> bool:
    """Say whether it can be run in a test: no field asks for thousands of passes or slots."""
    values = [getattr(spec, field.name) for field in dataclasses.fields(spec)]
    return all(not isinstance(value, int) or value <= 2000 for value in values)


@pytest.mark.slow
def test_hostile_values_are_refused_in_a_sentence_or_fit_their_annotation() -> None:
    """Any field of any spec, any value: an OptionError of one line, or a value of the right type that is finite."""
    fuzzer, rng = Fuzzer(), random.Random(16)
    for number in range(CASES):
        kind = SPECS[number % len(SPECS)]
        fields = dataclasses.fields(kind)
        chosen = rng.sample(fields, min(len(fields), rng.choice([1, 1, 1, 2, 4])))
        options = {field.name: hostile(rng) for field in chosen}
        case = f"{kind.__name__}({ {name: type(value).__name__ for name, value in options.items()} })"
        spec = fuzzer.run(case, lambda kind=kind, options=options: _made(kind, options))
        for field in chosen if spec is not None else ():
            wrong = _wrong(getattr(spec, field.name), str(field.type))
            if wrong:
                fuzzer.fault(f"{kind.__name__}.{field.name}", wrong)
    fuzzer.finish(CASES)


@pytest.mark.slow
def test_accepted_specs_run_without_silent_nan() -> None:
    """What a spec accepts also runs on a small network: finite confidences, or a sentence."""
    fuzzer, rng = Fuzzer(), random.Random(17)
    torch.manual_seed(0)
    network = Tiny()
    source = SourceData(torch.rand(24, 3, 8, 8), torch.randint(0, 3, (24,)))
    kinds = [*METHODS.values(), *CALIBRATORS.values()]
    for number in range(STEPS):
        kind = kinds[number % len(kinds)]
        fields = list(dataclasses.fields(kind))
        options = {field.name: _likely(field, rng) for field in rng.sample(fields, min(len(fields), 2))}
        case = f"{kind.__name__}({options})"
        confidence = fuzzer.run(case, lambda kind=kind, options=options: _run(kind, options, network, source))
        if confidence is not None and not bool(torch.isfinite(confidence).all()):
            fuzzer.fault(case, "silent NaN")
    fuzzer.finish(STEPS)


def _likely(field: Any, rng: random.Random) -> Any:
    """Return a value of the right type, often an extreme one."""
    default = field.default
    if isinstance(default, bool):
        return rng.random() < 0.5
    if isinstance(default, int):
        return rng.choice([0, 1, 2, 3, 16, 64, -1, 2**62 if field.name == "seed" else 7])
    if isinstance(default, float):
        return rng.choice([1e-300, 1e-30, 1e-6, 0.1, 0.5, 0.999, 1.0, 2.0, 1e3, 1e10, 1e38, 1e300])
    return rng.choice([default, "nonsense", "auto"]) if isinstance(default, str) else default


def _run(kind: type, options: dict[str, Any], network: nn.Module, source: SourceData) -> Tensor:
    spec = kind(**options)
    images = torch.rand(2, 6, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    live = spec.attach(network, source=source)
    outputs = [live(batch) for batch in images]
    return torch.stack(
        [out.softmax(1).amax(1) if isinstance(out, Tensor) else out.confidence for out in outputs]
    )
