"""Graphs by the shape they were captured for, as long as the tensors that they read stay where they are."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from torch import Tensor

Graph = TypeVar("Graph")
_MOST_MOVES = 4


class Shapes(Generic[Graph]):
    """What was captured, by key; None for a key that came once. All is dropped when a tensor moved in memory.

    Args:
        tables: parameters and buffers that are read, as modules hold them.
        most: keys to keep; beyond, all are dropped.
    """

    def __init__(self, tables: Sequence[Mapping[str, Any]], most: int) -> None:
        self.graphs: dict[Hashable, Graph | None] = {}
        self._tables, self._most = [table for table in tables if table], most
        self._addresses: list[int] = []
        self._moves = 0

    @property
    def restless(self) -> bool:
        """Whether the tensors have moved so often that capturing does not pay."""
        return self._moves > _MOST_MOVES

    def known(self, key: Hashable) -> bool:
        """Say whether this key came before, with the tensors where they are now."""
        tensors = [tensor for table in self._tables for tensor in table.values() if tensor is not None]
        addresses = list(map(Tensor.data_ptr, tensors))
        if addresses != self._addresses or len(self.graphs) > self._most:
            self._moves += addresses != self._addresses
            self.graphs.clear()
            self._addresses = addresses
        known = key in self.graphs
        self.graphs.setdefault(key, None)
        return known
