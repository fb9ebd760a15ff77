"""Tensors inside what a module gives, or a graph: one, or a sequence, mapping or dataclass of such things."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor


def tensors_in(value: Any) -> list[Tensor]:
    """Return the tensors, in order."""
    if isinstance(value, Tensor):
        return [value]
    return [tensor for item in _items(value) for tensor in tensors_in(item)]


def _items(value: Any) -> Iterable[Any]:
    # Mappings first: the outputs of transformers are both, and a dataclass field may be left out of the mapping.
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, tuple | list):
        return value
    return _fields(value).values()


def _fields(value: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return {}
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def with_tensors(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return the same with every tensor passed through `change`; a dataclass without tensors is the same object."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        items = {key: with_tensors(item, change) for key, item in value.items()}
        return items if type(value) is dict else type(value)(**items)
    if isinstance(value, tuple | list):
        parts = [with_tensors(item, change) for item in value]
        # A named tuple takes its fields one by one.
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    fields = _fields(value)
    new = {name: with_tensors(item, change) for name, item in fields.items()}
    return value if all(new[name] is item for name, item in fields.items()) else type(value)(**new)


def with_first_tensor(value: Any, features: Tensor) -> Any:
    """Return the same with its first tensor replaced."""
    left = iter([features])
    return with_tensors(value, lambda tensor: next(left, tensor))


def own_copy(value: Any) -> Any:
    """Return the same with tensors of its own; one that occurs twice is copied once."""
    # Tensors are hashed by identity.
    return with_tensors(value, cache(partial(torch.clone, memory_format=torch.preserve_format)))
