"""States with something wrong in them: taken over whole, or refused with nothing changed."""

from __future__ import annotations

import copy
import random
import warnings
from typing import Any

import pytest
import torch
from fuzzing import Fuzzer, hostile
from torch import Tensor, nn

from sicl import SICL, McDropout, Panel, PseudoCal, SourceData, TemperatureScaling, TransCal
from sicl.adapt import METHODS

CASES = 600
CALIBRATORS = [
    TemperatureScaling(every=1),
    McDropout(passes=2),
    TransCal(every=2, window=16),
    PseudoCal(window=16),
    SICL(variants=2, content_variants=2),
    SICL.paper(variants=2, content_variants=2),
]


class Tiny(nn.Module):
    """Two stages with batch norms and a head, for 8-pixel images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.layer1 = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.layer2 = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.fc = nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.layer2(self.layer1(self.stem(images))).mean(dim=(2, 3)))
        return logits


def _places(state: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if not isinstance(state, dict):
        return []
    return [place for key in state for place in ((*before, key), *_places(state[key], (*before, key)))]


def _damage(state: dict[str, Any], rng: random.Random) -> str:
    """Change one part of a state, in place; return what was done."""
    place = rng.choice(_places(state))
    holder: Any = state
    for key in place[:-1]:
        holder = holder[key]
    value = holder[place[-1]]
    kind = rng.choice(["hostile", "hostile", "remove", "foreign", "nan", "shape", "type"])
    if kind == "hostile":
        holder[place[-1]] = hostile(rng)
    elif kind == "remove":
        del holder[place[-1]]
    elif kind == "foreign":
        holder["foreign"] = value
    elif isinstance(value, Tensor):
        if kind == "nan" and value.is_floating_point():
            holder[place[-1]] = value * float("nan")
        elif kind == "shape":
            holder[place[-1]] = value.flatten()[: rng.randrange(3)]
        else:
            holder[place[-1]] = value.to(rng.choice([torch.int8, torch.complex64, torch.float64]))
    return f"{kind} at {place}"


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return isinstance(b, Tensor) and torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


def _fuzz(fuzzer: Fuzzer, rng: random.Random, live: Any, case: str, part: str | None = None) -> None:
    images = torch.rand(2, 6, 3, 8, 8, generator=torch.Generator().manual_seed(rng.randrange(99)))
    if rng.random() < 0.7:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            live(images[0])
    before = copy.deepcopy(live.state_dict())
    state = copy.deepcopy(before)
    case = f"{case}: {_damage(state if part is None else state[part], rng)}"
    refused = fuzzer.counts["refused"]
    fuzzer.run(case, lambda: live.load_state_dict(state))
    if fuzzer.counts["refused"] > refused:
        if not _same(live.state_dict(), before):
            fuzzer.fault(case, "refused, but something changed")
        return
    out = fuzzer.run(case, lambda: live(images[1]))
    for prediction in out.values() if isinstance(out, dict) else [out] if out is not None else []:
        if not bool(torch.isfinite(prediction.confidence).all()):
            fuzzer.fault(case, "silent NaN")


@pytest.mark.slow
def test_damaged_states_of_calibrations_change_nothing() -> None:
    """One part of a calibration's state is removed, exchanged, reshaped or NaN."""
    fuzzer, rng = Fuzzer(), random.Random(16)
    torch.manual_seed(0)
    network, source = Tiny(), SourceData(torch.rand(24, 3, 8, 8), torch.arange(24) % 3)
    for number in range(CASES // 2):
        spec = CALIBRATORS[number % len(CALIBRATORS)]
        live = spec.attach(network, source=source)
        _fuzz(fuzzer, rng, live, f"{number} {type(spec).__name__}", "calibration")
    fuzzer.finish(CASES // 2)


@pytest.mark.slow
def test_damaged_states_of_adapters_and_panels_change_nothing() -> None:
    """The same for whole panels, with every adaptation method."""
    fuzzer, rng = Fuzzer(), random.Random(17)
    torch.manual_seed(0)
    network, source = Tiny(), SourceData(torch.rand(24, 3, 8, 8), torch.arange(24) % 3)
    for number in range(CASES // 2):
        method = list(METHODS.values())[number % len(METHODS)]
        panel = Panel(
            {"sicl": SICL(variants=2), "pseudocal": PseudoCal(window=16)},
            method().attach(network, source=source),
        )
        _fuzz(fuzzer, rng, panel, f"{number} {method.__name__}")
    fuzzer.finish(CASES // 2)
