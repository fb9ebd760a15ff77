"""Run a classifier up to a layer once, and on from it as often as you like: the engine of SICL."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sicl.errors import InputError, UnsupportedModelError
from sicl.models.layers import Point, find_point
from sicl.models.norms import (
    Statistics,
    batch_norms,
    batch_statistics,
    frozen_statistics,
    record_statistics,
    running_statistics,
)

Plan = Literal["thin", "wide", "whole"]
"""How to resume: stubs of one row stand in for the prefix ("thin"); stubs of the full batch, for networks
that read the batch size from their input ("wide"); the prefix is computed again ("whole")."""


def logits_of(output: Any) -> Tensor:
    """Return the logits of a classifier's output: a tensor, or an object with `.logits`."""
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        raise UnsupportedModelError(
            "The model must return N x C logits or an object with `.logits`, got "
            f"{f'shape {tuple(logits.shape)}' if isinstance(logits, Tensor) else type(output).__name__}; "
            "wrap it in a module that does."
        )
    return logits


class Split:
    """A classifier cut at one layer.

    `features, logits = split.run(images)` runs the whole network as it stands; `split.resume(features)`
    computes logits from (perturbed) features without the part before the cut. Law: resuming the features
    unchanged gives the logits of `run`, once or repeated; checked on the first batch (or on `example`). A
    network for which it does not hold is resumed by whole passes, and a warning says so once.

    Args:
        network: any module that returns logits or an object with `.logits`.
        layer: a module name, "NAME:input", or "auto" (see `sicl.models.layers.find_point`).
        example: images to check the law with now instead of on the first batch.
    """

    def __init__(self, network: nn.Module, layer: str = "auto", *, example: Tensor | None = None) -> None:
        self.network = network
        self.point: Point = find_point(network, layer)
        self.plan: Plan | None = None
        self.statistics: Statistics = {}
        self._module = network.get_submodule(self.point.name)
        self._stubs: dict[nn.Module, list[Any]] = {}
        self._rest: tuple[Any, ...] = ()
        self._images: Tensor | None = None
        if example is not None:
            self.check(example)

    @torch.no_grad()
    def run(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return (features at the cut, logits) of a clean pass, and remember its norm statistics."""
        if self.plan is None:
            self.check(images)
        with record_statistics(self.network) as statistics:
            features, logits = self._tapped_pass(images)
        self.statistics, self._images = statistics, images
        return features, logits

    @torch.no_grad()
    def resume(
        self, features: Tensor, *, norm: Literal["frozen", "batch"] = "frozen", groups: int = 1
    ) -> Tensor:
        """Return the logits of features at the cut.

        Args:
            features: as `run` gave them, or V such batches stacked along dimension 0, variant after variant.
            norm: "frozen": batch norms keep what the last `run` normalised with; "batch": those that use
                batch statistics compute them anew, for each of the stacked batches apart.
            groups: how many batches are stacked (needed for "batch" and for whole passes).
        """
        if self._images is None or self.plan is None:
            raise InputError("`Split.resume` needs a clean pass first: call `run(images)` before it.")
        with self._norms(norm, groups):
            return self._resumed_pass(features, self.plan, groups)

    def _norms(self, norm: str, groups: int) -> Any:
        if norm == "frozen":
            return frozen_statistics(self.network, self.statistics)
        if any(module.training for module in batch_norms(self.network)):
            return batch_statistics(self.network, groups=groups)
        return nullcontext()

    def _tapped_pass(self, images: Tensor) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []

        def tap(value: Any) -> Any:
            if not seen:
                seen.append(_first_tensor(value, self.point))
            return value

        with self._at_point(tap):
            logits = logits_of(self.network(images))
        if not seen:
            raise UnsupportedModelError(
                f"{type(self.network).__name__} never called its module {self.point.name!r}; name another `layer`."
            )
        return seen[0], logits

    @contextmanager
    def _at_point(self, change: Callable[[Any], Any]) -> Iterator[None]:
        """Pass what stands at the cut through `change` while the block runs."""
        if self.point.side == "output":
            handle = self._module.register_forward_hook(lambda _m, _a, output: change(output))
        else:
            handle = self._module.register_forward_pre_hook(lambda _m, args: (change(args[0]), *args[1:]))
        try:
            yield
        finally:
            handle.remove()

    def _resumed_pass(self, features: Tensor, plan: Plan, groups: int) -> Tensor:
        assert self._images is not None
        reached = False

        def swap(value: Any) -> Any:
            nonlocal reached
            if reached:
                return value
            reached = True
            return _with_first_tensor(value, features)

        if plan == "whole":
            images = self._images.repeat(groups, *([1] * (self._images.ndim - 1)))
            with self._at_point(swap):
                return logits_of(self.network(images))
        rows = features.shape[0] if plan == "wide" else 1
        images = self._images[:1].expand(rows, *self._images.shape[1:])
        with _stubbed(self._stubs, rows, lambda: reached), self._at_point(swap):
            if self.point.side == "output":
                with _replaced_forward(self._module, lambda *_a, **_k: self._rest[0]):
                    return logits_of(self.network(images))
            return logits_of(self.network(images))

    @torch.no_grad()
    def check(self, images: Tensor) -> Plan:
        """Find the cheapest plan under which the law of this class holds for these images, and keep it."""
        rows = images[:4] if len(images) > 1 else torch.cat([images, images.flip(-1) * 0.5])
        self._images = rows
        with running_statistics(self.network), record_statistics(self.network) as statistics:
            self._stubs, self._rest = self._trace(rows)
            features, logits = self._tapped_pass(rows)
        self.statistics = statistics
        for plan in ("thin", "wide", "whole"):
            if self._law_holds(plan, features, logits):
                self.plan = plan
                break
        if self.plan is None:
            raise UnsupportedModelError(
                f"{type(self.network).__name__} does not give the same logits when it is resumed at "
                f"{str(self.point)!r}; name another `layer`."
            )
        if self.plan == "whole":
            warnings.warn(
                f"{type(self.network).__name__} cannot be resumed at {str(self.point)!r} (something bypasses "
                "that layer): SICL will use whole passes, which is slower. Name another `layer` to avoid it.",
                stacklevel=2,
            )
        return self.plan

    def _law_holds(self, plan: Plan, features: Tensor, logits: Tensor) -> bool:
        tolerance = 1e-3 * float(logits.abs().max()) + 1e-5
        for groups in (1, 2):
            stacked = torch.cat([features] * groups)
            try:
                with frozen_statistics(self.network, self.statistics), running_statistics(self.network):
                    again = self._resumed_pass(stacked, plan, groups)
            except (RuntimeError, ValueError, IndexError, TypeError):
                return False
            if again.shape[0] != stacked.shape[0]:
                return False
            if float((again - torch.cat([logits] * groups)).abs().max()) > tolerance:
                return False
        return True

    def _trace(self, images: Tensor) -> tuple[dict[nn.Module, list[Any]], tuple[Any, ...]]:
        """Return one row of what each module before the cut gave, call by call, and of the cut itself."""
        done: list[tuple[nn.Module, Any]] = []
        at_cut: list[Any] = []
        open_modules: list[nn.Module] = []
        handles = []
        for module in self.network.modules():
            handles.append(module.register_forward_pre_hook(lambda m, _a: open_modules.append(m)))
            handles.append(module.register_forward_hook(_note(done, at_cut, open_modules, self)))
        try:
            self.network(images)
        finally:
            for handle in handles:
                handle.remove()
        stubs: dict[nn.Module, list[Any]] = {}
        nested = {id(child) for module, _ in done for child in module.modules() if child is not module}
        for module, output in done:
            if id(module) not in nested:
                stubs.setdefault(module, []).append(_row(output))
        return stubs, tuple(_row(value) for value in at_cut[:1])


def _note(
    done: list[tuple[nn.Module, Any]], at_cut: list[Any], open_modules: list[nn.Module], split: Split
) -> Callable[[nn.Module, Any, Any], None]:
    """A hook that lists what finished before the cut was reached, and what stood there."""

    def hook(module: nn.Module, _args: Any, output: Any) -> None:
        open_modules.remove(module)
        inside = any(m is split._module for m in open_modules)
        if module is split._module and not at_cut:
            at_cut.append(output)
        elif not at_cut and not inside and split._module not in list(module.modules()):
            done.append((module, output))

    return hook


@contextmanager
def _stubbed(stubs: dict[nn.Module, list[Any]], rows: int, reached: Callable[[], bool]) -> Iterator[None]:
    """Let each module before the cut answer from its stub until the cut is reached."""
    saved = {module: module.__dict__.get("forward") for module in stubs}
    try:
        for module, outputs in stubs.items():
            module.__dict__["forward"] = _Stub(module.forward, outputs, rows, reached)
        yield
    finally:
        for module, forward in saved.items():
            _put_back(module, forward)


@contextmanager
def _replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    saved = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        _put_back(module, saved)


def _put_back(module: nn.Module, forward: Any) -> None:
    if forward is None:
        module.__dict__.pop("forward", None)
    else:
        module.__dict__["forward"] = forward


class _Stub:
    """Answers a module's calls before the cut from recorded rows; later calls go to the module itself."""

    def __init__(
        self, forward: Callable[..., Any], outputs: list[Any], rows: int, reached: Callable[[], bool]
    ) -> None:
        self.forward, self.outputs, self.rows, self.reached = forward, iter(outputs), rows, reached

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.reached():
            return self.forward(*args, **kwargs)
        return _expand(next(self.outputs), self.rows)


def _map_tensors(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(_map_tensors(item, function) for item in value)
    return value


def _row(value: Any) -> Any:
    return _map_tensors(value, lambda t: t[:1].clone() if t.ndim else t)


def _expand(value: Any, rows: int) -> Any:
    if rows == 1:
        return value
    return _map_tensors(value, lambda t: t.expand(rows, *t.shape[1:]) if t.ndim and t.shape[0] == 1 else t)


def _first_tensor(value: Any, point: Point) -> Tensor:
    first = value[0] if isinstance(value, tuple | list) and value else value
    if not isinstance(first, Tensor):
        raise UnsupportedModelError(
            f"{str(point)!r} gives {type(value).__name__}, not a tensor; name another `layer`."
        )
    return first


def _with_first_tensor(value: Any, features: Tensor) -> Any:
    if isinstance(value, tuple | list):
        return type(value)([features, *value[1:]])
    return features
