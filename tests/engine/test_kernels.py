"""Kernels for a GPU: when they are used, on which device, and, in Triton's interpreter, what they compute."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from sicl.engine.kernels import norm, variants


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not installed (`pip install triton`): what the GPU kernels compute is not looked at",
)
def test_kernels_compute_what_torch_does() -> None:
    """In a process of its own: Triton decides when it is imported whether it interprets."""
    script = str(Path(__file__).with_name("interpreted.py"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", script],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.fixture
def _believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels as they are where Triton is installed and was proven."""
    monkeypatch.setattr(norm, "AVAILABLE", True)
    monkeypatch.setattr(variants, "tl", object())
    for module in (norm, variants):
        monkeypatch.setattr(module, "_proven", lambda _device: True)


def _on_a_gpu(dtype: torch.dtype = torch.float32) -> Any:
    """What is asked of a tensor there before it goes to a kernel."""
    return SimpleNamespace(
        device=torch.device("cuda"), dtype=dtype, ndim=4, is_contiguous=lambda memory_format: True
    )


@pytest.mark.usefixtures("_believed")
@pytest.mark.parametrize("module", [norm, variants])
def test_kernels_are_used_where_nothing_is_lost(module: ModuleType) -> None:
    """Gradients do not flow through them, and float64 has more digits than they compute with."""
    with torch.no_grad():
        assert module.usable(_on_a_gpu())
        assert module.usable(_on_a_gpu(torch.bfloat16))
        assert not module.usable(_on_a_gpu(torch.float64))
    with torch.enable_grad():
        assert not module.usable(_on_a_gpu())


@pytest.mark.parametrize("run", ["norm", "affine", "noisy"])
def test_kernels_are_launched_on_the_device_of_their_tensors(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The current device may be another GPU."""
    current: list[Any] = []
    launched: list[tuple[str, bool]] = []

    @contextmanager
    def device_of(tensor: torch.Tensor) -> Any:
        current.append(tensor)
        yield
        current.pop()

    class Kernel:
        def __init__(self, name: str) -> None:
            self.name = name

        def __getitem__(self, _grid: Any) -> Callable[..., None]:
            return lambda *_args, **_sizes: launched.append((self.name, bool(current)))

    arithmetic = SimpleNamespace(
        cdiv=lambda a, b: -(-a // b), next_power_of_2=lambda n: 1 << (n - 1).bit_length()
    )
    for module, names in ((norm, ("_sums", "_normalise")), (variants, ("_affine", "_noisy"))):
        monkeypatch.setattr(module, "triton", arithmetic)
        monkeypatch.setattr(module, "device_of", device_of)
        for name in names:
            monkeypatch.setattr(module, name, Kernel(name))
    maps = torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    if run == "norm":
        norm.grouped_norm(maps, 2, None, None, 1e-5)
    elif run == "affine":
        variants.affine(maps, torch.zeros(1, 2, 3), torch.zeros(1, 2, 3), torch.empty_like(maps))
    else:
        variants.noisy(maps, torch.zeros(2, 3), torch.zeros(1, 200), None, 97, torch.empty_like(maps))
    expected = ["_sums", "_normalise"] if run == "norm" else [f"_{run}"]
    assert launched == [(name, True) for name in expected]
