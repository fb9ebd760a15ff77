"""Stand-ins for the modules before a cut, so that the rest of a network runs without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sicl.engine.norms import attributes_restored
from sicl.engine.trees import tensors_in, with_tensors


class Stubs:
    """What each module before a cut answers while the network is resumed from the cut.

    Answers have the right shape but hold NaN: whatever reaches the logits past the cut shows at once. A module
    whose answer does not depend on the images (a table of positions, say) is no stub: it runs.

    Args:
        cut: the module at the cut.
        side: whether the cut is the module's "output" or its "input".
    """

    def __init__(self, cut: nn.Module, side: str) -> None:
        self.cut, self.side = cut, side
        self.answers: dict[nn.Module, list[Any]] = {}
        self.template: Any = None

    def trace(self, network: nn.Module, images: Tensor) -> Any:
        """Learn, from one pass, the answers of the modules that finish before the cut is reached; return its output.

        Args:
            network: to run.
            images: rows that differ (`probe`): what is the same for all of them does not depend on them.
        """
        # In the order in which modules finish: inner ones before those that hold them.
        done: list[tuple[nn.Module, Any]] = []
        at_cut: list[Any] = []
        open_modules: list[nn.Module] = []

        def leave(module: nn.Module, _args: Any, output: Any) -> None:
            open_modules.remove(module)
            if module is self.cut and not at_cut:
                at_cut.append(output)
            # A module that holds the cut has to run, for the cut is reached inside it.
            elif not at_cut and not any(m is self.cut for m in (*open_modules, *module.modules())):
                done.append((module, output))

        with ExitStack() as hooks:
            for module in network.modules():
                hooks.enter_context(module.register_forward_pre_hook(lambda m, _a: open_modules.append(m)))
                hooks.enter_context(module.register_forward_hook(leave))
            output = network(images)
        self._keep(done, at_cut, len(images))
        return output

    def of_copy(self, modules: Mapping[nn.Module, nn.Module], dtype: torch.dtype) -> Stubs:
        """Return the same for a copy of the network in another dtype: `modules` are the copy's, by the network's."""

        def cast(output: Any) -> Any:
            return with_tensors(output, lambda t: t.to(dtype) if t.is_floating_point() else t)

        stubs = Stubs(modules[self.cut], self.side)
        stubs.answers = {modules[m]: [cast(output) for output in own] for m, own in self.answers.items()}
        stubs.template = cast(self.template)
        return stubs

    def _keep(self, done: list[tuple[nn.Module, Any]], at_cut: list[Any], rows: int) -> None:
        # The outermost is enough: its children are never called once it is a stub.
        nested = {id(child) for module, _ in done for child in module.modules() if child is not module}
        calls: dict[nn.Module, list[Any]] = {}
        for module, output in done:
            if id(module) not in nested:
                calls.setdefault(module, []).append(output)
        self.answers = {
            module: [_poisoned(output, rows) for output in outputs]
            for module, outputs in calls.items()
            # Constants, such as position tables, are cheap to compute and may be read after the cut.
            if all(_depends_on_row(output, rows) for output in outputs)
        }
        self.template = _poisoned(at_cut[0], rows) if at_cut else None

    @contextmanager
    def installed(self, rows: int, reached: Callable[[], bool]) -> Iterator[None]:
        """Let stubs answer, for `rows` images, until `reached` says that the cut was reached."""
        with attributes_restored([*self.answers, self.cut], "forward"):
            for module, outputs in self.answers.items():
                # On the instance: hooks and the class stay untouched, and putting it back is one deletion.
                module.__dict__["forward"] = _stub(module.forward, outputs, rows, reached)
            if self.side == "output":
                self.cut.__dict__["forward"] = _stub(self.cut.forward, [self.template], rows, reached)
            yield


def _stub(forward: Callable[..., Any], outputs: list[Any], rows: int, reached: Callable[[], bool]) -> Any:
    """Return what answers a module's calls before the cut; later calls go to the module itself."""
    left = iter(outputs)

    def answer(*args: Any, **kwargs: Any) -> Any:
        if reached():
            return forward(*args, **kwargs)
        # A module may be called several times before the cut, with another answer each time.
        output = next(left, None)
        if output is None:
            raise RuntimeError("the network called a module before the cut more often than in its first pass")
        return _expanded(output, rows)

    return answer


def probe(images: Tensor) -> Tensor:
    """Return a few rows like the images that differ from each other, whatever these are (all black, say)."""
    # Two rows at least: with one, nothing tells a batch dimension from any other.
    some = images[:4] if len(images) > 1 else torch.cat([images, images])
    # A generator of its own: the global random state is the user's.
    noise = torch.rand(some.shape, generator=torch.Generator().manual_seed(0))
    return torch.lerp(some, noise.to(some), 0.5)


def _depends_on_row(output: Any, rows: int) -> bool:
    """Say whether the output has a part for each row, and these parts differ."""
    for tensor in tensors_in(output):
        if tensor.ndim and tensor.shape[0] and tensor.shape[0] % rows == 0:
            parts = tensor.view(rows, -1) if tensor.is_contiguous() else tensor.reshape(rows, -1)
            if not torch.equal(parts[:1].expand_as(parts), parts):
                return True
    return False


def _poisoned(output: Any, rows: int) -> Any:
    """One row's share of the output, floats as NaN."""

    def change(tensor: Tensor) -> Tensor:
        if tensor.ndim and tensor.shape[0] and tensor.shape[0] % rows == 0:
            tensor = tensor[: tensor.shape[0] // rows]
        # Integers (indices, masks) have no NaN; they keep their values, so that lookups stay in range.
        return torch.full_like(tensor, float("nan")) if tensor.is_floating_point() else tensor.clone()

    return with_tensors(output, change)


def _expanded(output: Any, rows: int) -> Any:
    if rows == 1:
        return output

    def change(tensor: Tensor) -> Tensor:
        if tensor.ndim == 0:
            return tensor
        if tensor.shape[0] == 1:
            return tensor.expand(rows, *tensor.shape[1:])
        return tensor.repeat(rows, *[1] * (tensor.ndim - 1))

    return with_tensors(output, change)


def changed_input(
    args: tuple[Any, ...], kwargs: dict[str, Any], change: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Change a module's first argument, also where it was passed by name."""
    if args:
        return (change(args[0]), *args[1:]), kwargs
    name = next(iter(kwargs))
    return args, {**kwargs, name: change(kwargs[name])}
