"""Triton, where it is installed: `triton` and its language `tl`, or None; and what all its kernels share."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

triton: Any = None
tl: Any = None
try:
    triton = importlib.import_module("triton")
    tl = importlib.import_module("triton.language")
except ImportError:
    pass


def jit(kernel: Callable[..., Any]) -> Any:
    """Return the function as a kernel; without Triton None, which nobody calls."""
    return None if tl is None else triton.jit(kernel)


def device_of(values: Tensor) -> torch.cuda.device:
    """Return a context in which kernels are launched where the values are; -1 leaves the current device."""
    return torch.cuda.device(values.get_device())


def fits_float32(values: Tensor) -> bool:
    """Say whether kernels, which compute in float32, lose no digits of the values."""
    return values.dtype in (torch.float32, torch.bfloat16, torch.float16)


def works(check: Callable[[Callable[..., Tensor]], bool]) -> Callable[[torch.device], bool]:
    """Return whether a comparison of kernels with plain torch holds on a device: found out once, on normal values."""

    @functools.cache
    def proven(device: torch.device) -> bool:
        # A kernel is believed only after that; what it raises means no as well.
        generator = torch.Generator(device).manual_seed(0)
        try:
            return check(lambda *size: torch.randn(size, generator=generator, device=device))
        except Exception:
            return False

    return proven
