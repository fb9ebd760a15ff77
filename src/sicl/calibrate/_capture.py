"""Record work on a GPU once and replay it: hundreds of kernels for the price of one launch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sicl.calibrate._variants import Votes

_WARM_UPS = 2


class Captured:
    """A function of tensors, captured as a CUDA graph; calling it copies the inputs in and the votes out.

    Args:
        function: works on fixed shapes, without looking at values.
        example: inputs to capture with.

    Raises:
        RuntimeError: the function does something that cannot be captured.
    """

    def __init__(self, function: Callable[[list[Tensor]], Votes], example: list[Tensor]) -> None:
        self._inputs = [_static(tensor) for tensor in example]
        self._graph, self._votes = _captured(lambda: function(self._inputs))

    def __call__(self, inputs: list[Tensor]) -> Votes:
        """Return the votes of these inputs, in tensors of their own."""
        for static, value in zip(self._inputs, inputs):
            static.copy_(value)
        self._graph.replay()
        return Votes(self._votes.hard.clone(), self._votes.soft.clone())


class Replay:
    """A function that reads and writes tensors at fixed addresses, captured; captured anew when these move.

    Args:
        function: what to do.
        reads: the tensors it reads, as they are now.
    """

    def __init__(self, function: Callable[[], None], reads: Callable[[], list[Tensor]]) -> None:
        self._function, self._reads = function, reads
        self._graph: Any = None
        self._addresses: tuple[int, ...] = ()
        self._possible = True

    def __call__(self) -> None:
        """Do it."""
        addresses = tuple(tensor.data_ptr() for tensor in self._reads())
        if self._possible and addresses != self._addresses:
            try:
                self._graph, _ = _captured(self._function)
                self._addresses = addresses
            except Exception:
                # Not capturable (a cast on the host, say): it runs as it is, which is only slower.
                self._possible = False
        if self._possible:
            self._graph.replay()
        else:
            self._function()


def _captured(function: Callable[[], Any]) -> tuple[Any, Any]:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(_WARM_UPS):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = function()
    return graph, out


def _static(tensor: Tensor) -> Tensor:
    """A copy at an address of its own, with the same layout."""
    return tensor.clone(memory_format=torch.preserve_format)
