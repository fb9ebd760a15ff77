"""Where a result was computed: versions, machine and device."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import sicl

PACKAGES = ("torch", "numpy", "scipy", "timm", "torchvision", "transformers")


def environment(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return what a result's reader needs to compute it again, ready for JSON."""
    place = torch.device(device)
    return {
        "sicl": sicl.__version__,
        "python": platform.python_version(),
        **{name: found for name in PACKAGES if (found := _version(name)) is not None},
        "platform": platform.platform(),
        "device": str(place),
        "device_name": _device_name(place),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "tf32": {
            "convolutions": bool(torch.backends.cudnn.allow_tf32),
            "matrix_products": bool(torch.backends.cuda.matmul.allow_tf32),
        },
        **({"cuda": torch.version.cuda} if place.type == "cuda" else {}),
    }


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@cache
def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        try:
            return str(torch.cuda.get_device_name(device))
        except (RuntimeError, AssertionError):  # The record of a failure must not fail.
            return "does not answer"
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
