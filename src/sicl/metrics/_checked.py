"""The one door through which values enter a metric: checked, detached, float64 on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sicl.errors import InputError, require_between, require_integer, shown

MOST_BINS = 10_000
"""The most bins a metric counts with."""


def require_bins(n_bins: int) -> None:
    """Raise `OptionError` unless `n_bins` is an integer in 1..MOST_BINS."""
    require_integer(n_bins=n_bins)
    require_between(1, MOST_BINS, n_bins=n_bins)


def numbers(name: str, values: Any, *, ndim: int | None = None, device: str | None = None) -> Tensor:
    """Return `values` as a detached, dense float64 tensor of finite real numbers.

    Args:
        name: of the argument, for the message.
        values: a tensor, or what torch makes one of.
        ndim: the number of dimensions it must have; None allows any.
        device: where it goes; None leaves it where it is.

    Raises:
        InputError: it is something else.
    """
    try:
        tensor = torch.as_tensor(values).detach()
        if tensor.is_complex():
            raise TypeError
        tensor = tensor.to(device or tensor.device, torch.float64)
        finite = torch.isfinite(tensor)
        bad = int((~finite).sum())
    except (TypeError, ValueError, RuntimeError, OverflowError, NotImplementedError):
        raise InputError(f"`{name}` must be a tensor of real numbers, got {shown(values)}.") from None
    if ndim is not None and tensor.ndim != ndim:
        raise InputError(f"`{name}` must have {ndim} dimensions, got shape {tuple(tensor.shape)}.")
    if bad:
        raise InputError(f"`{name}` must be finite, got {bad} NaN or infinite of {tensor.numel()} values.")
    return tensor


def finite_result(name: str, result: Tensor) -> Tensor:
    """Return `result`, or say that what it was made of is too large for float64."""
    if not bool(torch.isfinite(result).all()):
        raise InputError(f"`{name}` has values so large that the result is not finite; scale them down.")
    return result


def class_indices(name: str, values: Any, length: int, n_classes: int | None = None) -> Tensor:
    """Return `values` as int64: one class index a sample, each in 0..n_classes - 1 where that is given."""
    checked = numbers(name, values, ndim=1)
    if len(checked) != length or bool((checked != checked.floor()).any()):
        raise InputError(
            f"`{name}` must be {length} class indices, got {len(checked)} values of {shown(values)}."
        )
    indices = checked.long()
    if length and (int(indices.min()) < 0 or (n_classes is not None and int(indices.max()) >= n_classes)):
        raise InputError(
            f"`{name}` must lie in 0..{'' if n_classes is None else n_classes - 1}, got values from "
            f"{int(indices.min())} to {int(indices.max())}."
        )
    return indices


def finite_vector(name: str, values: Tensor) -> Tensor:
    """Return `values` as a float64 CPU vector, or raise `InputError` if it is empty, NaN or not 1-D."""
    vector = numbers(name, values, device="cpu")
    if vector.ndim != 1 or len(vector) == 0:
        raise InputError(
            f"`{name}` must be a vector with at least one value, got shape {tuple(vector.shape)}."
        )
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
