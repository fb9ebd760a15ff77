"""A stand-in for CUDA graphs, so that what captures them can be tested on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from sicl.engine import graphs
from sicl.engine.trees import tensors_in


class StandIn(graphs.Graph):
    """A graph that computes by calling again, into the tensors that it returned when it was captured."""

    made = 0

    def __init__(
        self,
        function: Callable[..., Any],
        example: list[Tensor],
        _pool: Any,
        generator: torch.Generator | None,
    ) -> None:
        StandIn.made += 1
        self._function = function
        self._inputs = [tensor.clone() for tensor in example]
        state = None if generator is None else generator.get_state()
        with graphs._captured_effects() as self._effects:
            self._output = function(self._inputs)
        if generator is not None and state is not None:
            # To capture is not to draw.
            generator.set_state(state)

    def replay(self, inputs: list[Tensor]) -> Any:
        for static, value in zip(self._inputs, inputs):
            static.copy_(value)
        with graphs._captured_effects():
            out = self._function(self._inputs)
        for static, value in zip(tensors_in(self._output), tensors_in(out)):
            static.copy_(value)
        return self._output


def use(patch: pytest.MonkeyPatch) -> None:
    """Capture on every device, by the stand-in."""
    patch.setattr(StandIn, "made", 0)
    patch.setattr(graphs, "Graph", StandIn)
    patch.setattr(graphs, "can_capture", lambda _device: not graphs.is_capturing())
