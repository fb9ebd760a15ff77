"""Record work on a GPU once and replay it: hundreds of kernels for the price of one launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

_WARM_UPS = 2


class Captured:
    """A function of tensors, captured as a CUDA graph; calling it copies the inputs in.

    The output lives in memory of the graph and is overwritten by the next call of any graph of its pool.

    Args:
        function: works on fixed shapes, without looking at values.
        example: inputs to capture with.
        pool: memory that graphs share; they must run one after the other.
        generator: one that the function draws from; every replay draws on.
        warm_ups: calls before the capture; a function that ran before needs none.

    Raises:
        RuntimeError: the function does something that cannot be captured.
    """

    def __init__(
        self,
        function: Callable[[list[Tensor]], Any],
        example: list[Tensor],
        pool: Any,
        *,
        generator: torch.Generator | None = None,
        warm_ups: int = _WARM_UPS,
    ) -> None:
        self._inputs = [tensor.clone(memory_format=torch.preserve_format) for tensor in example]
        self._graph, self._output = _captured(lambda: function(self._inputs), pool, generator, warm_ups)

    def __call__(self, inputs: list[Tensor]) -> Any:
        """Run on these inputs."""
        for static, value in zip(self._inputs, inputs):
            static.copy_(value)
        self._graph.replay()
        return self._output


class Replay:
    """A function that reads and writes tensors at fixed addresses, captured; captured anew when these move.

    Args:
        function: what to do.
        reads: the tensors it reads, as they are now.
        pool: memory that graphs share.
    """

    def __init__(self, function: Callable[[], Any], reads: Callable[[], list[Tensor]], pool: Any) -> None:
        self._function, self._reads, self._pool = function, reads, pool
        self._graph: Any = None
        self._addresses: tuple[int, ...] = ()
        self.problem = ""

    def __call__(self) -> None:
        """Do it."""
        addresses = tuple(tensor.data_ptr() for tensor in self._reads())
        if not self.problem and addresses != self._addresses:
            try:
                self._graph, _ = _captured(self._function, self._pool)
                self._addresses = addresses
            except Exception as error:
                # It runs as it is then, which is only slower.
                self.problem = str(error)
        if self.problem:
            self._function()
        else:
            self._graph.replay()


def new_pool(device: torch.device) -> Any:
    """Return memory for graphs to share (None where there are no graphs)."""
    return torch.cuda.graph_pool_handle() if device.type == "cuda" else None


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


_rehearsing: ContextVar[bool] = ContextVar("rehearsing", default=False)


@contextmanager
def rehearsal() -> Iterator[None]:
    """Run a block by the code that will run when it is captured (but for lanes, which need a capture)."""
    token = _rehearsing.set(True)
    try:
        yield
    finally:
        _rehearsing.reset(token)


def is_capturing(device: torch.device) -> bool:
    """Say whether what is launched now goes into a graph, or would."""
    return device.type == "cuda" and (_rehearsing.get() or torch.cuda.is_current_stream_capturing())


class Lanes:
    """Branches of a graph that is being captured: what is launched in a lane runs beside the rest.

    A lane begins where the lanes were made, and `join` ends all of them. Outside of a capture there are none,
    and everything runs in line.

    Args:
        device: that is captured on.
        open_: whether there may be lanes.
    """

    def __init__(self, device: torch.device, *, open_: bool = True) -> None:
        self._streams: dict[Any, Any] = {}
        self._start: Any = None
        if open_ and device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self._start = torch.cuda.current_stream().record_event()

    @contextmanager
    def of(self, key: Any) -> Iterator[None]:
        """Launch in the lane with this key (None: in line)."""
        if self._start is None or key is None:
            yield
            return
        if key not in self._streams:
            self._streams[key] = torch.cuda.Stream()  # type: ignore[no-untyped-call]
            self._streams[key].wait_event(self._start)
        with torch.cuda.stream(self._streams[key]):
            yield

    def join(self) -> None:
        """Go on only when all lanes are done."""
        for stream in self._streams.values():
            torch.cuda.current_stream().wait_stream(stream)
        self._streams, self._start = {}, None


def _captured(
    function: Callable[[], Any],
    pool: Any,
    generator: torch.Generator | None = None,
    warm_ups: int = _WARM_UPS,
) -> tuple[Any, Any]:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad(), tuned(torch.device("cuda")):
        for _ in range(warm_ups):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    if generator is not None:
        graph.register_generator_state(generator)
    # Other threads may use the device meanwhile (a stream that makes its corruptions there).
    capture = torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local")
    # The outer context: a capture that fails would leave its stream the current one.
    with torch.no_grad(), torch.cuda.stream(torch.cuda.current_stream()), capture:
        out = function()
    return graph, out


def is_out_of_memory(error: Exception) -> bool:
    """Say whether an allocation failed, on any device."""
    text = str(error).lower()
    kinds = ("out of memory", "can't allocate memory", "not enough memory", "cublas_status_alloc_failed")
    return isinstance(error, torch.cuda.OutOfMemoryError) or any(kind in text for kind in kinds)
