"""What a step that fails goes back to: a copy of the adapter's state that follows it cheaply."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

UNCOUNTED = ("running_mean", "running_var")
"""Torch's batch-norm kernels write to these without counting it."""


class _Kept:
    """A live tensor, how often it had been written to, and its copy."""

    __slots__ = ("live", "own", "saved", "version")

    def __init__(self, live: Tensor, saved: Tensor | None) -> None:
        # The tensor is held, not its address: a freed address may be another tensor's by the next step.
        self.live, self.version = live, live._version
        self.own = saved is None
        self.saved = live.clone() if saved is None else saved


class Undo:
    """A copy of a state, renewed before every step.

    A tensor is copied again only where torch counted a write to it since (`counted`), so what never moves
    costs nothing, neither time nor a second copy beside `start`.

    Args:
        counted: whether all writes are counted; those through `.data` are not, and then all is copied.
        start: a copy that exists already and is never written to; its tensors are shared.
    """

    def __init__(self, *, counted: bool, start: dict[str, Any] | None = None) -> None:
        self.counted = counted
        self._start = start
        self._kept: Any = None
        self._writes: dict[torch.device, tuple[list[Tensor], list[Tensor]]] = {}

    @torch.no_grad()
    def take(self, state: dict[str, Any]) -> None:
        """Copy a state, given by references to the live tensors."""
        self._kept = self._follow(state, self._kept, self._start)
        for into, values in self._writes.values():
            torch._foreach_copy_(into, values)
        self._writes, self._start = {}, None

    def state(self) -> dict[str, Any]:
        """Return what `take` copied last; whoever gets it may keep it."""
        state: dict[str, Any] = _copied(self._kept)
        return state

    def _follow(self, value: Any, kept: Any, start: Any, name: Any = None) -> Any:
        """Return the state with a `_Kept` for each tensor, those of last time where they can serve."""
        if isinstance(value, Tensor):
            return self._tensor(value, kept, start, name)
        if isinstance(value, dict):
            old = kept if isinstance(kept, dict) else {}
            first = start if isinstance(start, dict) else {}
            return {key: self._follow(item, old.get(key), first.get(key), key) for key, item in value.items()}
        if isinstance(value, list | tuple):
            same = isinstance(kept, type(value)) and len(kept) == len(value)
            old_items = kept if same else [None] * len(value)
            return type(value)([self._follow(item, old, None) for item, old in zip(value, old_items)])
        return value if isinstance(value, int | float | str | bytes | None) else copy.deepcopy(value)

    def _tensor(self, value: Tensor, kept: Any, start: Any, name: Any) -> _Kept:
        if not isinstance(kept, _Kept):
            return _Kept(value, start if isinstance(start, Tensor) else None)
        if self.counted and _unwritten(kept, value) and not str(name).endswith(UNCOUNTED):
            return kept
        if not kept.own or kept.saved.shape != value.shape or kept.saved.dtype != value.dtype:
            return _Kept(value, None)
        into, values = self._writes.setdefault(value.device, ([], []))
        into.append(kept.saved)
        values.append(value)
        kept.live, kept.version = value, value._version
        return kept


def _unwritten(kept: _Kept, value: Tensor) -> bool:
    here = kept.version == value._version and kept.live.data_ptr() == value.data_ptr()
    return here and kept.live.shape == value.shape


def _copied(tree: Any) -> Any:
    if isinstance(tree, _Kept):
        return tree.saved.clone()
    if isinstance(tree, dict):
        return {key: _copied(item) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)([_copied(item) for item in tree])
    return copy.deepcopy(tree)
