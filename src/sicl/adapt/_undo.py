"""What a step that fails goes back to: a copy of the adapter's state that follows it cheaply."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor

Path = tuple[Any, ...]

UNCOUNTED = ("running_mean", "running_var")
"""Torch's batch-norm kernels write to these without counting it."""


class _Kept(NamedTuple):
    # The live tensor is held, not its address: a freed address may be another tensor's by the next step.
    live: Tensor
    version: int
    saved: Tensor
    shared: bool


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
        self._kept: dict[Path, _Kept] = {}
        self._state: dict[str, Any] = {}
        self._writes: dict[torch.device, tuple[list[Tensor], list[Tensor]]] = {}

    def take(self, state: dict[str, Any]) -> None:
        """Copy a state, given by references to the live tensors."""
        before, self._kept, self._writes = self._kept, {}, {}
        self._state = self._walk(state, (), before)
        for into, values in self._writes.values():
            torch._foreach_copy_(into, values)
        self._start = None

    def state(self) -> dict[str, Any]:
        """Return what `take` copied last; whoever gets it may keep it."""
        return copy.deepcopy(self._state)

    def _walk(self, value: Any, path: Path, before: dict[Path, _Kept]) -> Any:
        if isinstance(value, Tensor):
            return self._copied(value.detach(), path, before)
        if isinstance(value, dict):
            return {key: self._walk(item, (*path, key), before) for key, item in value.items()}
        if isinstance(value, list | tuple):
            items = [self._walk(item, (*path, i), before) for i, item in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        return value if isinstance(value, int | float | str | bytes | None) else copy.deepcopy(value)

    def _copied(self, value: Tensor, path: Path, before: dict[Path, _Kept]) -> Tensor:
        kept = before.get(path)
        if kept is None:
            saved = None if self._start is None else _at(self._start, path)
            if isinstance(saved, Tensor):
                kept = _Kept(value, value._version, saved, True)
            else:
                kept = _Kept(value, value._version, value.clone(), False)
        elif not (self.counted and _same(kept, value)) or str(path[-1]).endswith(UNCOUNTED):
            if kept.shared or not _alike(kept.saved, value):
                kept = _Kept(value, value._version, value.clone(), False)
            else:
                into, values = self._writes.setdefault(value.device, ([], []))
                into.append(kept.saved)
                values.append(value)
                kept = _Kept(value, value._version, kept.saved, False)
        self._kept[path] = kept
        return kept.saved


def _same(kept: _Kept, value: Tensor) -> bool:
    here = kept.live.data_ptr() == value.data_ptr() and kept.live.shape == value.shape
    return here and kept.version == value._version


def _alike(saved: Tensor, value: Tensor) -> bool:
    return (saved.shape, saved.dtype, saved.device) == (value.shape, value.dtype, value.device)


def _at(tree: Any, path: Path) -> Any:
    for key in path:
        tree = tree[key]
    return tree
