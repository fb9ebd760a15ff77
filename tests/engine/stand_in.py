"""A stand-in for CUDA graphs, so that what captures and replays them can be tested on a CPU.

As on a GPU, a graph is a list of operators with the tensors that they read and wrote: a replay runs them again and no
Python between them. What would wait for the device, or read the host's memory, is refused while capturing. Streams
order a graph as they do there: what no event orders is replayed in another order than it was captured in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sicl.engine import graphs

_REFUSED = {"_local_scalar_dense", "nonzero", "equal", "lift_fresh", "is_nonzero", "masked_select"}
"""Operators that wait for the device, or copy from the host (a tensor made of Python's numbers)."""


@dataclass
class Stream:
    """An order of work: each piece is done after those it waits for."""

    last: set[int] = field(default_factory=set)

    def record_event(self) -> set[int]:
        return set(self.last)

    def wait_event(self, event: set[int]) -> None:
        self.last |= event

    def wait_stream(self, other: Stream) -> None:
        self.last |= other.last


@dataclass
class _Work:
    run: Callable[[], None]
    after: set[int]
    draws: bool


class StandIn(TorchDispatchMode):
    """In the place of `torch.cuda.CUDAGraph`."""

    made = 0
    capturing: StandIn | None = None
    stream = Stream()

    def __init__(self) -> None:
        super().__init__()
        StandIn.made += 1
        self._work: list[_Work] = []
        self._order: list[_Work] = []
        self._generators: list[torch.Generator] = []

    def register_generator_state(self, generator: torch.Generator) -> None:
        self._generators.append(generator)

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in _REFUSED:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        leaves = tree_leaves((args, kwargs))
        generators = [leaf for leaf in leaves if isinstance(leaf, torch.Generator)]
        # By address: each call wraps a generator anew.
        if not {g._cdata for g in generators} <= {g._cdata for g in self._generators}:
            raise RuntimeError("a generator that draws in a graph must be registered with it")
        out = func(*args, **kwargs)
        read = {t.untyped_storage().data_ptr() for t in leaves if isinstance(t, Tensor)}
        kept = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        fresh = [t.untyped_storage().data_ptr() not in read for t in kept]

        def run() -> None:
            again = [t for t in tree_leaves(func(*args, **kwargs)) if isinstance(t, Tensor)]
            for place, value, own in zip(kept, again, fresh):
                # What shares the memory of its input was written there, or is a view of it.
                if own:
                    place.copy_(value)

        stream = StandIn.stream
        self._work.append(_Work(run, set(stream.last), bool(generators)))
        stream.last = {len(self._work) - 1}
        return out

    @torch.no_grad()
    def replay(self) -> None:
        """Do all work again: draws as they came, as each has its place in the generator's sequence; then the rest."""
        self._order = self._order or self._another_order()
        for work in (*filter(lambda w: w.draws, self._work), *(w for w in self._order if not w.draws)):
            work.run()

    def _another_order(self) -> list[_Work]:
        """What was captured last comes first, as far as streams and events allow it."""
        order: dict[int, _Work] = {}
        waiting = dict(enumerate(self._work))
        while waiting:
            number = next(i for i in reversed(waiting) if waiting[i].after <= order.keys())
            order[number] = waiting.pop(number)
        return list(order.values())


@contextmanager
def _capture(graph: StandIn, *, pool: Any, capture_error_mode: str) -> Iterator[None]:
    assert pool is not None
    assert capture_error_mode == "thread_local"
    states = [generator.get_state() for generator in graph._generators]
    StandIn.capturing, StandIn.stream = graph, Stream()
    try:
        with graph:
            yield
    finally:
        StandIn.capturing = None
        for generator, state in zip(graph._generators, states):
            # To capture is not to draw.
            generator.set_state(state)


@contextmanager
def _within(stream: Stream) -> Iterator[None]:
    before, StandIn.stream = StandIn.stream, stream
    try:
        yield
    finally:
        StandIn.stream = before


def use(patch: pytest.MonkeyPatch) -> None:
    """Capture on every device, by the stand-in."""
    patch.setattr(StandIn, "made", 0)
    patch.setattr(graphs, "has_graphs", lambda _device: True)
    for name, value in {
        "CUDAGraph": StandIn,
        "Stream": Stream,
        "graph": _capture,
        "stream": _within,
        "graph_pool_handle": object,
        "current_stream": lambda: StandIn.stream,
        "is_current_stream_capturing": lambda: StandIn.capturing is not None,
    }.items():
        patch.setattr(torch.cuda, name, value)
