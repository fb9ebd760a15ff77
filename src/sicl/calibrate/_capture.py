"""Record work on a GPU once and replay it: hundreds of kernels for the price of one launch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

    Raises:
        RuntimeError: the function does something that cannot be captured.
    """

    def __init__(self, function: Callable[[list[Tensor]], Any], example: list[Tensor], pool: Any) -> None:
        self._inputs = [tensor.clone(memory_format=torch.preserve_format) for tensor in example]
        self._graph, self._output = _captured(lambda: function(self._inputs), pool)

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


def _captured(function: Callable[[], Any], pool: Any) -> tuple[Any, Any]:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad(), tuned(torch.device("cuda")):
        for _ in range(_WARM_UPS):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Other threads may use the device meanwhile (a stream that makes its corruptions there).
    with torch.no_grad(), torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        out = function()
    return graph, out


def is_out_of_memory(error: Exception) -> bool:
    """Say whether an allocation failed, on any device."""
    text = str(error).lower()
    kinds = ("out of memory", "can't allocate memory", "not enough memory", "cublas_status_alloc_failed")
    return isinstance(error, torch.cuda.OutOfMemoryError) or any(kind in text for kind in kinds)
