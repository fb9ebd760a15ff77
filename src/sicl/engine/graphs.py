"""Record work on a GPU once and replay it: hundreds of kernels for the price of one launch.

Everything that is captured goes through `Captures`: a function of tensors runs as it is the first time, is captured
the second time, and is replayed from then on for as long as what it reads stays where it is in memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from sicl.engine.trees import own_copy, tensors_in

Tables = Sequence[Mapping[str, Any]]
"""Parameters and buffers as modules hold them: looked up anew, since adaptation may replace a tensor."""
Function = Callable[[list[Tensor]], Any]
T = TypeVar("T")
_MOST_MOVES = 4
"""After so many moves in memory capturing no longer pays."""
_MOST_FAILURES = 2
"""After running out of memory so often, a function is captured no more."""
_OFF = 0.02
"""By how much a replay may differ from the run it was captured from: the rounding of other kernels."""

_effects: ContextVar[list[Callable[[], None]] | None] = ContextVar("effects", default=None)
"""What is to be done after each replay of what is being captured; None where nothing is."""


def has_graphs(device: torch.device) -> bool:
    """Say whether work on a device can be captured at all."""
    return device.type == "cuda"


def can_capture(device: torch.device) -> bool:
    """Say whether there are graphs on a device, and none is being captured now."""
    # No graph inside a graph: what is captured within a larger capture becomes part of that one.
    if not has_graphs(device) or is_capturing():
        return False
    return not torch.cuda.is_current_stream_capturing()


def is_capturing() -> bool:
    """Say whether what runs now goes into a graph, or is the rehearsal for it."""
    return _effects.get() is not None


def effect(function: Callable[[], None]) -> None:
    """Do something in Python that belongs to the work at hand: now, or after every replay if it is captured."""
    # Replays skip Python, so what must happen there every time is kept beside the graph.
    waiting = _effects.get()
    if waiting is None:
        function()
    else:
        waiting.append(function)


class Graphs:
    """All that one calibration captures: its engines and its poll give back memory together.

    Args:
        lanes: whether work that does not depend on other work may run beside it.
    """

    def __init__(self, *, lanes: bool = True) -> None:
        self.lanes = lanes
        self.notes: list[str] = []
        # Weak: an engine that is dropped takes its graphs with it.
        self._all: weakref.WeakSet[Captures] = weakref.WeakSet()

    def captures(
        self, what: str, reads: Tables, *, most: int = 8, generator: torch.Generator | None = None
    ) -> Captures:
        """Return what captures functions of one kind, see `Captures`."""
        made = Captures(self, what, reads, most=most, generator=generator)
        self.add(made)
        return made

    def add(self, captures: Captures) -> None:
        """Let what captures give back its memory with the others."""
        self._all.add(captures)

    def forget(self) -> None:
        """Give back the memory of all graphs; they are captured anew when they are needed."""
        for captures in list(self._all):
            captures.forget()

    def __reduce__(self) -> tuple[Any, ...]:
        # Graphs are addresses in a device's memory: no part of a copy, nor of a saved object.
        return partial(Graphs, lanes=self.lanes), ()


class Captures:
    """Runs functions of tensors: `captures(key, function, inputs)`; on a GPU, from the second time of a key on, by
    replaying a graph.

    Laws. The first call of a key runs the function as it is. The second runs it as it will be captured, captures
    it, and believes the graph only if a replay gives the same numbers. A graph is dropped when a tensor that it
    reads has moved in memory. When memory runs out, all graphs of the calibration are given back and the function
    runs as it is. A function that cannot be captured runs as it is for good, and `problem` says why. What a call
    returns is the caller's own.

    Args:
        graphs: where this belongs to.
        what: the function, in words.
        reads: parameters and buffers that the function reads.
        most: keys to keep; beyond, all are dropped.
        generator: one that the function draws from; every replay draws on.
    """

    def __init__(
        self, graphs: Graphs, what: str, reads: Tables, *, most: int, generator: torch.Generator | None
    ) -> None:
        self._graphs, self._what, self._most = graphs, what, most
        # Empty tables, most of them, would be walked on every call.
        self._reads = [table for table in reads if table]
        self._generator = generator
        self._kept: dict[Hashable, Graph | None] = {}
        self._pool: Any = None
        self._addresses: list[int] = []
        self._moves = self._failures = 0
        self.problem = ""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": {}, "_pool": None, "_addresses": []}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._graphs.add(self)

    @property
    def captured(self) -> int:
        """How many keys are replayed."""
        return sum(graph is not None for graph in self._kept.values())

    def forget(self) -> None:
        """Give back the graphs' memory."""
        # A pool that no graph uses any more cannot be captured into again.
        self._kept, self._pool = {}, None

    def __call__(self, key: Hashable, function: Callable[[list[Tensor]], T], inputs: list[Tensor]) -> T:
        """Return `function(inputs)`.

        Args:
            key: the same for calls that differ in the values of the inputs only.
            function: does nothing that depends on values; what it does to Python objects goes through `effect`.
            inputs: its tensors; the first says on which device it runs.
        """
        # Off a GPU, and after a failure, this is a plain call.
        device = inputs[0].device
        if self.problem or not can_capture(device):
            return function(inputs)
        if not self._known(key):
            with tuned(device):
                return function(inputs)
        graph = self._kept[key] or self._capture(function, inputs)
        # Not this time: what is wrong has been noted.
        if graph is None:
            return function(inputs)
        self._kept[key] = graph
        out: T = graph(inputs)
        return out

    def _known(self, key: Hashable) -> bool:
        """Say whether this key came before, with the tensors where they are now."""
        tensors = [tensor for table in self._reads for tensor in table.values() if tensor is not None]
        # A graph reads addresses, not tensors: a parameter that was replaced would go unseen.
        addresses = list(map(Tensor.data_ptr, tensors))
        if addresses != self._addresses or len(self._kept) > self._most:
            self._moves += addresses != self._addresses
            self.forget()
            self._addresses = addresses
        if self._moves > _MOST_MOVES:
            self._give_up("the network's tensors keep moving")
            return False
        known = key in self._kept
        # None marks a first call; a key that comes once is never worth a capture.
        self._kept.setdefault(key, None)
        return known

    def _capture(self, function: Function, inputs: list[Tensor]) -> Graph | None:
        """Capture the function; a generator goes on where it was."""
        start = None if self._generator is None else self._generator.get_state()
        try:
            with _captured_effects(), tuned(inputs[0].device):
                # Run once as it will be captured: libraries set themselves up on a first run, outside of any graph.
                expected = function(inputs)
            if not all(bool(t.isfinite().all()) for t in _floats_in(expected)):
                # Nothing can be compared with it; the next batch is tried.
                return None
            self._restart(start)
            # One pool for all: graphs of one calibration never run at the same time.
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            graph = Graph(function, inputs, self._pool, self._generator)
            # Believed only after a replay: some kernels capture without a word and compute something else.
            off = difference(graph.replay(inputs), expected)
            if not off < _OFF:
                raise RuntimeError(f"it is off by {off:.3g}")
            return graph
        except Exception as error:
            self._failed(error)
            return None
        finally:
            self._restart(start)

    def _restart(self, state: Tensor | None) -> None:
        if self._generator is not None and state is not None:
            self._generator.set_state(state)

    def _failed(self, error: Exception) -> None:
        if self._generator is not None and self._generator.device.type == "cuda":
            # A capture that failed leaves the generator's state unusable: give it another.
            self._generator.graphsafe_set_state(torch.Generator(self._generator.device))
        # Memory may be there next time; anything else will fail again.
        self._failures += is_out_of_memory(error)
        self._graphs.forget()
        if not is_out_of_memory(error) or self._failures >= _MOST_FAILURES:
            self._give_up(str(error))
        elif torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _give_up(self, reason: str) -> None:
        self.problem = f"no CUDA graph of {self._what}: {reason}"
        self._graphs.notes.append(self.problem)
        self.forget()


class Graph:
    """A function of tensors, captured as a CUDA graph; calling it copies the inputs in and the output out.

    Args:
        function: works on fixed shapes, without looking at values, and has run before.
        example: inputs to capture with.
        pool: memory to share with other graphs, none of which runs at the same time.
        generator: one that the function draws from.

    Raises:
        RuntimeError: the function does something that cannot be captured.
    """

    def __init__(
        self, function: Function, example: list[Tensor], pool: Any, generator: torch.Generator | None
    ) -> None:
        # Inputs of its own: a replay reads where the capture read.
        self._inputs = [tensor.clone(memory_format=torch.preserve_format) for tensor in example]
        self._graph = torch.cuda.CUDAGraph()
        if generator is not None:
            self._graph.register_generator_state(generator)
        # Other threads may use the device meanwhile (a stream that makes its corruptions there).
        capture = torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local")
        # The outer stream context: a capture that fails would leave its stream the current one.
        with (
            torch.no_grad(),
            torch.cuda.stream(torch.cuda.current_stream()),
            _captured_effects() as self._effects,
            capture,
        ):
            self._output = function(self._inputs)

    def replay(self, inputs: list[Tensor]) -> Any:
        """Run on these inputs; the output is overwritten by the next run."""
        # Copies in stream order: no wait.
        for static, value in zip(self._inputs, inputs):
            static.copy_(value)
        self._graph.replay()
        return self._output

    def __call__(self, inputs: list[Tensor]) -> Any:
        """Run on these inputs, with all effects; the output is the caller's."""
        # The next replay overwrites the output, and the caller may still hold it.
        out = own_copy(self.replay(inputs))
        for done in self._effects:
            done()
        return out


@contextmanager
def _captured_effects() -> Iterator[list[Callable[[], None]]]:
    """Run a block as what is captured: no graphs inside, and effects are kept for later."""
    found: list[Callable[[], None]] = []
    token = _effects.set(found)
    try:
        yield found
    finally:
        _effects.reset(token)


def _floats_in(value: Any) -> list[Tensor]:
    """Return what can be compared: the tensors of floats that are not empty."""
    return [tensor for tensor in tensors_in(value) if tensor.is_floating_point() and tensor.numel()]


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Return the mean difference in units of the mean size."""
    return float((found - expected).abs().mean()) / (float(expected.abs().mean()) + 1e-6)


def difference(found: Any, expected: Any) -> float:
    """Return the largest relative error of a tensor (NaN if one is)."""
    # Labels may fall either way by rounding; only floats are compared.
    pairs = zip(_floats_in(found), _floats_in(expected))
    errors = [relative_error(f.float(), e.float()) for f, e in pairs]
    return float(torch.tensor([0.0, *errors]).max())


@contextmanager
def tuned(device: torch.device) -> Iterator[None]:
    """Let cuDNN time its algorithms for the shapes that are new to it, and remember the fastest.

    Not where the user asked for deterministic algorithms: which is fastest may change from run to run.
    """
    backend: Any = torch.backends.cudnn
    before = backend.benchmark
    backend.benchmark = before or (device.type == "cuda" and not backend.deterministic)
    try:
        yield
    finally:
        backend.benchmark = before


class Lanes:
    """Branches of a graph that is being captured: what is launched in a lane runs beside the rest.

    A lane begins where the lanes were made, and `join` ends all of them. Outside of a capture there are none,
    and everything runs in line.

    Args:
        device: that is captured on.
        open_: whether there may be lanes.
    """

    def __init__(self, device: torch.device, *, open_: bool) -> None:
        self._streams: dict[Any, Any] = {}
        self._start: Any = None
        if open_ and has_graphs(device) and torch.cuda.is_current_stream_capturing():
            # Outside of a capture there is nothing to branch: work is launched as it comes.
            self._start = torch.cuda.current_stream().record_event()

    @contextmanager
    def of(self, key: Any) -> Iterator[None]:
        """Launch in the lane with this key (None: in line)."""
        if self._start is None or key is None:
            yield
            return
        if key not in self._streams:
            self._streams[key] = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            # A lane may read all that was written before the lanes began, and nothing later.
            self._streams[key].wait_event(self._start)
        with torch.cuda.stream(self._streams[key]):
            yield

    def join(self) -> None:
        """Go on only when all lanes are done."""
        for stream in self._streams.values():
            torch.cuda.current_stream().wait_stream(stream)
        self._streams, self._start = {}, None


def is_out_of_memory(error: Exception) -> bool:
    """Say whether an allocation failed, on any device."""
    text = str(error).lower()
    kinds = ("out of memory", "can't allocate memory", "not enough memory", "cublas_status_alloc_failed")
    return isinstance(error, torch.cuda.OutOfMemoryError) or any(kind in text for kind in kinds)
