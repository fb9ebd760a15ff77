"""Devices by name: what "auto" stands for, whether a device is here, and which GPU a worker takes."""

from __future__ import annotations

from sicl.errors import OptionError


def choose_device(device: str) -> str:
    """Return a device that is here; "auto" stands for a GPU where there is one, else for the CPU.

    Raises:
        OptionError: no such device, or this machine has none.
    """
    import torch

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
