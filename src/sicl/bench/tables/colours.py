"""One colour for each calibrator, method and perturbation, the same in every drawing and in the report."""

from __future__ import annotations

import colorsys
import zlib

OF_CALIBRATORS = {
    "softmax": "#6b7280",
    "temperature_scaling": "#0b7fab",
    "mc_dropout": "#7c4dcc",
    "transcal": "#b07c04",
    "pseudocal": "#17875a",
    "sicl_paper": "#e0690f",
    "sicl": "#d11149",
}
METHODS = {
    "source": "#8b93a1",
    "batchnorm": "#475569",
    "tent": "#2563eb",
    "eata": "#0d9488",
    "sar": "#ca8a04",
    "rotta": "#9333ea",
    "sotta": "#0ea5e9",
    "sotta+sicl": "#d11149",
}
PARTS = {
    "style": "#e0690f",
    "style votes": "#f0a35e",
    "content": "#334155",
    "content votes": "#334155",
    "mixstyle": "#2a9d8f",
    "dropout": "#7c4dcc",
    "mean only": "#5b8def",
    "std only": "#b5838d",
    "style votes, guard": "#84a98c",
    "sicl, no guard": "#f28da9",
    "sicl, no mirror": "#7dd3c0",
    "sicl, no softmax": "#6b7280",
    "sicl, no crop": "#334155",
    "sicl, no style": "#f4c95d",
    "cifar10": "#2563eb",
    "cifar100": "#ca8a04",
    "paper": "#6b7280",
    "ours": "#d11149",
    "ECE": "#d11149",
    "accuracy": "#16181d",
    "confidence": "#6b7280",
}
_KNOWN = {**PARTS, **METHODS, **OF_CALIBRATORS}


def colour_of(name: str) -> str:
    """Return the colour of a calibrator, method or part; an unknown name has one of its own, always the same."""
    if name in _KNOWN:
        return _KNOWN[name]
    hue = zlib.crc32(name.encode()) / 2**32
    red, green, blue = colorsys.hls_to_rgb(hue, 0.48, 0.5)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
