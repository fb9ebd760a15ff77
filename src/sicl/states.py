"""Compare a state that is to be loaded with those an object can have, and say what differs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sicl.errors import InputError, is_integer, is_number, shown


def require_state(state: Any, *own: Any, whose: str, part: str = "") -> None:
    """Raise `InputError` unless `state` is built as one of `own` and holds no NaN.

    Args:
        state: the state of a stranger.
        own: states of the object it goes to: as it is now, and as it was at its start (where much is None).
        whose: the object's name, for the message.
        part: where in the state, for the message.
    """
    here = part or "`state`"
    # What is empty at the start fills with names that only its owner knows.
    if isinstance(own[0], dict) and isinstance(state, dict) and (all(own) or not part):
        _require_names(state, own[0], whose, here)
        for name in state:
            inner = [o[name] for o in own if isinstance(o, dict) and name in o]
            require_state(state[name], *inner, whose=whose, part=f"{here}[{name!r}]")
    elif not any(_alike(state, o) for o in own) or (
        _fixed(own) and state.shape not in [o.shape for o in own]
    ):
        raise InputError(
            f"{here} does not fit {whose}: it is {_words(state)} and must be {_words(own[0])}; attach what it was "
            "saved from, to the same model."
        )
    elif not _finite(state):
        raise InputError(f"{here} has NaN or infinite values; it was damaged, or saved from a broken model.")


def same(state: Any, other: Any) -> bool:
    """Say whether two states hold the same, bit for bit."""
    if isinstance(state, Tensor) or isinstance(other, Tensor):
        alike = isinstance(state, Tensor) and isinstance(other, Tensor) and state.dtype == other.dtype
        return alike and torch.equal(state, other)
    if isinstance(state, dict) and isinstance(other, dict):
        return state.keys() == other.keys() and all(same(state[key], other[key]) for key in state)
    if isinstance(state, list | tuple) and isinstance(other, list | tuple):
        return len(state) == len(other) and all(map(same, state, other))
    return bool(state == other)


def require_moments(optimizer: torch.optim.Optimizer) -> None:
    """Raise `InputError` unless an optimizer remembers the same of every parameter, in the parameter's shape."""
    known = {frozenset(moments) for moments in optimizer.state.values()}
    for parameter, moments in optimizer.state.items():
        held = [value for value in moments.values() if value is not None]
        fits = all(isinstance(value, Tensor) and value.shape in ((), parameter.shape) for value in held)
        if not fits or len(known) > 1:
            raise InputError(
                "`state` does not fit the optimizer: what it remembers of a parameter is missing or of another shape; "
                "attach what it was saved from, to the same model."
            )


def _require_names(state: dict[Any, Any], own: dict[Any, Any], whose: str, here: str) -> None:
    lacking = [shown(name) for name in own if name not in state]
    foreign = [shown(name) for name in state if name not in own]
    if lacking or foreign:
        parts = [f"lacks {', '.join(lacking[:5])}"] * bool(lacking) + [
            f"has {', '.join(foreign[:5])}"
        ] * bool(foreign)
        raise InputError(
            f"{here} is not one of {whose}: it {' and '.join(parts)}; attach what it was saved from."
        )


def _alike(state: Any, own: Any) -> bool:
    """Say whether a leaf may stand where `own` stands; the first dimension of tensors counts what was seen."""
    if isinstance(own, Tensor):
        same = isinstance(state, Tensor) and state.dtype == own.dtype and state.ndim == own.ndim
        seen = own.numel() > 0
        return bool(same and state.layout == own.layout and (state.shape[1:] == own.shape[1:] or not seen))
    if own is None:
        # Not seen yet: numbers and tensors may come, of shapes that only the next batch can judge.
        return state is None or _tensors(state) or is_number(state)
    if isinstance(own, bool) or isinstance(state, bool):
        return isinstance(own, bool) and isinstance(state, bool)
    if is_integer(own):
        return is_integer(state) and state >= 0
    return isinstance(state, type(own))


def _fixed(own: tuple[Any, ...]) -> bool:
    """Say whether a part has a shape from the start, which does not count what was seen."""
    return _tensors(own) and all(tensor.numel() for tensor in own)


def _tensors(state: Any) -> bool:
    parts = state if isinstance(state, list | tuple) else [state]
    return bool(parts) and all(isinstance(item, Tensor) and item.layout == torch.strided for item in parts)


def _finite(state: Any) -> bool:
    if isinstance(state, dict | list | tuple):
        return all(map(_finite, state.values() if isinstance(state, dict) else state))
    if isinstance(state, Tensor):
        return not (state.is_floating_point() or state.is_complex()) or bool(torch.isfinite(state).all())
    return not isinstance(state, float) or abs(state) < float("inf")


def _words(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"
    return (
        "a number >= 0" if is_integer(value) and value >= 0 else f"{type(value).__name__} {shown(value):.60}"
    )
