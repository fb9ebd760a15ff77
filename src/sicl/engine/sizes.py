"""Measure how large what layers give is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

AtPoint = Callable[[Callable[[Any], Any]], AbstractContextManager[None]]
"""Passes what stands at a cut through a function while a block runs."""


@contextmanager
def layer_sizes(network: nn.Module, at_point: AtPoint) -> Iterator[list[int]]:
    """Yield a list that gets the size of what each layer after a cut gives in the pass made inside."""
    sizes: list[int] = []
    reached: list[bool] = []

    def note(_module: nn.Module, _args: Any, output: Any) -> None:
        if reached and isinstance(output, Tensor):
            sizes.append(output.numel())

    def mark(value: Any) -> Any:
        reached.append(True)
        return value

    with ExitStack() as stack:
        stack.enter_context(at_point(mark))
        for module in network.modules():
            if next(module.children(), None) is None:
                stack.callback(module.register_forward_hook(note).remove)
        yield sizes
