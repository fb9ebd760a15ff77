"""Damaged and strange checkpoints: a network with finite logits, or a sentence."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing import Fuzzer, damaged, hostile
from safetensors.torch import save
from torch import Tensor

from sicl import load_model
from sicl.errors import shown
from sicl.models.checkpoint import ModelConfig

BYTES, CONTENTS = 1500, 1000
CONFIG = ModelConfig(arch="resnet18", width=2, n_classes=3)


def _state() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return CONFIG.build().state_dict()


def _torch(content: Any, *, legacy: bool = False) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=not legacy)
    return file.getvalue()


def _logits(path: Path, **options: Any) -> Tensor:
    model = load_model(path, **options)
    with torch.no_grad():
        return model(torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))


def _check(fuzzer: Fuzzer, case: str, path: Path, **options: Any) -> None:
    logits = fuzzer.run(case, lambda: _logits(path, **options))
    if logits is not None and not bool(torch.isfinite(logits).all()):
        fuzzer.fault(case, f"logits {logits}")


@pytest.mark.slow
def test_damaged_bytes_are_noticed_or_harmless(tmp_path: Path) -> None:
    """safetensors, torch's zip and torch's older format, cut, flipped, zeroed and lengthened."""
    fuzzer, rng, state = Fuzzer(), random.Random(16), _state()
    kinds = {
        "a.safetensors": save(state, CONFIG.to_metadata()),
        "a.pt": _torch(state),
        "a.pth": _torch({"state_dict": state, "epoch": 3}, legacy=True),
    }
    for number in range(BYTES):
        name = list(kinds)[number % 3]
        (tmp_path / name).write_bytes(damaged(kinds[name], rng))
        _check(fuzzer, f"{number} {name}", tmp_path / name)
    fuzzer.finish(BYTES)


def _changed(state: dict[str, Tensor], rng: random.Random) -> Any:
    """Return a state dict with something wrong in it."""
    name = rng.choice(list(state))
    tensor = state[name]
    changes = [
        lambda: state.pop(name),
        lambda: state.update(
            {name: tensor.float() * rng.choice([float("nan"), float("inf"), 1e30, -1e38, -1.0])}
        ),
        lambda: state.update({name: tensor.new_zeros(rng.choice([(), (0,), (3,), (1, 1), (2, 3, 7, 7)]))}),
        lambda: state.update(
            {name: tensor.to(rng.choice([torch.complex64, torch.int8, torch.bool, torch.float16]))}
        ),
        lambda: state.update({name: tensor.to_sparse() if tensor.ndim else tensor}),
        lambda: state.update({rng.choice(["layer", "layer9", "", "conv1.weight.x", "\ud800"]): tensor}),
        lambda: state.update({"conv1.weight": torch.zeros(rng.choice([0, 1, 70_000]), 3, 3, 3)}),
        lambda: state.update({"fc.weight": torch.zeros(rng.choice([0, 1]), rng.choice([0, 16]))}),
    ]
    for change in rng.sample(changes, rng.choice([1, 1, 2])):
        change()
    nested: Any = rng.choice([state, {"state_dict": state}, {f"module.{k}": v for k, v in state.items()}])
    return (
        nested
        if rng.random() < 0.9
        else rng.choice([[], {}, 3, {"a": {}}, "x", {"model": 3}, {"net": nested}])
    )


@pytest.mark.slow
def test_strange_contents_and_options_are_a_sentence(tmp_path: Path) -> None:
    """Tensors missing, foreign, of other shapes, types and layouts; metadata and options of any kind."""
    fuzzer, rng, state = Fuzzer(), random.Random(17), _state()
    for number in range(CONTENTS):
        path = tmp_path / "a.safetensors"
        if rng.random() < 0.5:
            path = tmp_path / "a.pt"
            path.write_bytes(_torch(_changed(dict(state), rng)))
        else:
            metadata = CONFIG.to_metadata()
            values = [
                "",
                "x",
                "nan,nan,nan",
                "1,2",
                "1e400,1,1",
                "0,0,0",
                "1e",
                "resnet18-w9",
                "vit_small",
                "timm:x",
            ]
            metadata[rng.choice(list(metadata))] = rng.choice(values)
            path.write_bytes(save({**state, "fc.bias": state["fc.bias"] * rng.choice([1, 2])}, metadata))
        options = {}
        if rng.random() < 0.1:
            options["arch"] = rng.choice(["resnet50", "vit_small", "nonsense", "", "timm:nonsense"])
        _check(fuzzer, f"{number} {path.name} {options}", path, **options)
    for _ in range(50):
        name = hostile(rng)
        if isinstance(name, str):
            fuzzer.run(f"load_model({shown(name)})", lambda name=name: load_model(name))
    fuzzer.finish(CONTENTS)
