"""The machine: devices by name, which GPU a worker takes, and what a record says of where it was computed."""

from __future__ import annotations

import os
import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

import sicl
from sicl.errors import OptionError


def choose_device(device: str) -> str:
    """Return a device that is here; "auto" stands for a GPU where there is one, else for the CPU.

    Raises:
        OptionError: no such device, or this machine has none.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto":
        return "cuda" if gpus else "cpu"
    try:
        wanted = torch.device(device)
    except RuntimeError as error:
        raise OptionError(f"`device` must be cpu, cuda, cuda:1, mps or auto, got {device!r}.") from error
    if wanted.type == "cuda" and (wanted.index or 0) >= gpus:
        raise OptionError(
            f"`device` is {device!r}, but torch sees {gpus} GPUs here; use auto, or see what `sicl doctor` says."
        )
    if wanted.type == "mps" and not torch.backends.mps.is_available():
        raise OptionError("`device` is 'mps', which torch does not have here; use auto or cpu.")
    return device


def device_of_worker(device: str, worker: int, gpus: int) -> str:
    """Return a worker's own device: "cuda" becomes one of several GPUs in turn, all else stays."""
    return f"cuda:{worker % gpus}" if device == "cuda" and gpus > 1 else device


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
