"""A look at a batch: all the votes that need no second thought, on a GPU as one captured graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sicl.calibrate.sicl.budget import Settling
from sicl.calibrate.sicl.questions import Engines
from sicl.engine.engine import Engine
from sicl.engine.graphs import Captured, rehearsal
from sicl.engine.shapes import Shapes

_MOST_SHAPES = 4
_OFF = 0.02
"""By how much the mean vote of a graph may differ from the votes it was captured from: rounding only."""


@dataclass(frozen=True)
class Look:
    """What a look at a batch gave.

    Args:
        engines: what could compute votes.
        used: what did.
        signals: N values each, by name.
        style: N x 2 x C, the batch's style statistics, if it was asked about style.
        settling: the votes that have had their first round only, with an adaptive budget.
    """

    engines: Engines
    used: tuple[Engine, ...]
    signals: dict[str, Tensor]
    style: Tensor | None = None
    settling: Settling | None = None

    def finished(self) -> dict[str, Tensor]:
        """Return all signals, after as many more rounds as the batch needs."""
        return self.signals if self.settling is None else {**self.signals, **self.settling.finish()}

    def values(self) -> dict[str, Tensor]:
        """Return the signals and the votes so far."""
        return self.signals if self.settling is None else {**self.signals, **self.settling.begun}

    def differs_by(self, other: Look) -> float:
        """Return the largest mean difference of a signal or of votes (NaN if one is)."""
        found, expected = self.values(), other.values()
        return float(torch.stack([(found[name] - expected[name]).abs().mean() for name in expected]).max())


Looking = Callable[[Tensor, Tensor, Tensor], Look]
"""Looks at (images, logits, the temperature of the votes)."""


class Looks:
    """Calls `look`; from the second batch of a shape on, a GPU replays it as one graph.

    A graph is believed only if it gives the votes it was captured from, and is made anew when a parameter or
    buffer of the networks moved in memory.

    Args:
        look: does nothing that depends on values.
        networks: what it reads.
        generator: what it draws from.
    """

    def __init__(self, look: Looking, networks: Iterable[nn.Module], generator: torch.Generator) -> None:
        self._look, self._generator = look, generator
        modules = [module for network in networks for module in network.modules()]
        tables = [table for m in modules for table in (m._parameters, m._buffers)]
        self._shapes: Shapes[_LookGraph] = Shapes(tables, _MOST_SHAPES)
        self._used: tuple[Engine, ...] = ()
        self.problem = ""
        if generator.device.type == "cuda" and not hasattr(torch.cuda.CUDAGraph, "register_generator_state"):
            self.problem = "no CUDA graph of a whole look: this torch cannot draw in a graph"

    def __call__(self, images: Tensor, logits: Tensor, temperature: Tensor) -> Look:
        """Return a look at the batch."""
        inputs = [images, logits, temperature]
        key = (tuple(images.shape), tuple(logits.shape), logits.dtype)
        if self.problem or not all(engine.captures(images.device) for engine in self._used):
            return self._plain(inputs)
        if not self._known(key) or not all(engine.fits(images) for engine in self._used):
            return self._plain(inputs)
        graph = self._shapes.graphs[key]
        if graph is None or not graph.is_valid():
            graph = self._shapes.graphs[key] = self._capture(inputs)
        return self._plain(inputs) if graph is None else graph(inputs)

    def forget(self) -> None:
        """Give back the graphs' memory."""
        self._shapes.graphs.clear()

    @property
    def captured(self) -> int:
        """How many shapes are replayed."""
        return sum(graph is not None for graph in self._shapes.graphs.values())

    def _plain(self, inputs: list[Tensor]) -> Look:
        seen = self._look(*inputs)
        self._used = seen.used
        return seen

    def _capture(self, inputs: list[Tensor]) -> _LookGraph | None:
        """Capture a look; the noise goes on where it was."""
        start = self._generator.get_state()
        try:
            with rehearsal():
                expected = self._plain(inputs)
            if not all(bool(value.isfinite().all()) for value in expected.values().values()):
                return None
            self._generator.set_state(start)
            graph = _LookGraph(self._look, inputs, self._generator, self._used)
            off = graph(inputs).differs_by(expected)
            if not off < _OFF:
                raise RuntimeError(f"its votes are off by {off:.3g}")
            return graph
        except Exception as error:
            self.problem = f"no CUDA graph of a whole look: {error}"
            self._shapes.graphs.clear()
            if self._generator.device.type == "cuda":
                # A capture that failed leaves the generator's state unusable: give it another.
                self._generator.graphsafe_set_state(torch.Generator(self._generator.device))
            return None
        finally:
            self._generator.set_state(start)

    def _known(self, key: Hashable) -> bool:
        known = self._shapes.known(key)
        if self._shapes.restless:
            self.problem = "no CUDA graph of a whole look: the networks' tensors keep moving"
        return known


class _LookGraph:
    """A captured look. What a call returns is its own, but for what `settling` has begun."""

    def __init__(
        self, look: Looking, inputs: list[Tensor], generator: torch.Generator, used: tuple[Engine, ...]
    ) -> None:
        def step(tensors: list[Tensor]) -> tuple[Look, Tensor]:
            seen = look(*tensors)
            # As one tensor the signals are copied at once.
            return seen, torch.stack(list(seen.signals.values()))

        before = [engine.rows_sent for engine in used]
        self._captured = Captured(step, inputs, None, generator=generator, warm_ups=0)
        self._marks = [(engine, engine.mark(rows)) for engine, rows in zip(used, before)]
        for engine, rows in zip(used, before):
            engine.rows_sent = rows

    def is_valid(self) -> bool:
        """Say whether the engines are still those it was captured from."""
        return all(engine.is_at(mark) for engine, mark in self._marks)

    def __call__(self, inputs: list[Tensor]) -> Look:
        seen, signals = self._captured(inputs)
        for engine, mark in self._marks:
            engine.back_to(mark)
        own = dict(zip(seen.signals, signals.clone().unbind()))
        looked: Look = replace(seen, signals=own, style=None if seen.style is None else seen.style.clone())
        return looked
