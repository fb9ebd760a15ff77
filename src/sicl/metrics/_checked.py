"""The one door through which values enter a metric: checked, detached, float64 on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from sicl.errors import InputError


def finite_vector(name: str, values: Tensor) -> Tensor:
    """Return `values` as a float64 CPU vector, or raise `InputError` if it is empty, NaN or not 1-D."""
    vector = torch.as_tensor(values).detach().to("cpu", torch.float64)
    if vector.ndim != 1 or len(vector) == 0:
        raise InputError(
            f"`{name}` must be a vector with at least one value, got shape {tuple(vector.shape)}."
        )
    if not bool(torch.isfinite(vector).all()):
        bad = int((~torch.isfinite(vector)).sum())
        raise InputError(f"`{name}` must be finite, got {bad} NaN or infinite of {len(vector)} values.")
    return vector


def binary_vector(name: str, values: Tensor, length: int) -> Tensor:
    """Return `values` (booleans, or zeros and ones) as a float64 CPU vector of the given length."""
    vector = finite_vector(name, values)
    if len(vector) != length:
        raise InputError(f"`{name}` must have one value a sample, got {len(vector)} for {length} samples.")
    if not bool(((vector == 0) | (vector == 1)).all()):
        raise InputError(f"`{name}` must hold booleans or 0 and 1, got values up to {vector.max().item():g}.")
    return vector


def confidence_and_correct(confidence: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """Return both as float64 CPU vectors; confidence must lie in [0, 1]."""
    checked = finite_vector("confidence", confidence)
    low, high = checked.min().item(), checked.max().item()
    if low < 0 or high > 1:
        raise InputError(
            f"`confidence` must lie in [0, 1], got values from {low:g} to {high:g}. "
            "Pass probabilities, not logits."
        )
    return checked, binary_vector("correct", correct, len(checked))
