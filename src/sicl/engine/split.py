"""Run a classifier up to a layer once, and on from it as often as you like: the engine of SICL."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sicl.engine.cut import Point, find_point
from sicl.engine.norms import (
    Statistics,
    batch_norms,
    batch_statistics,
    can_group,
    fresh_statistics,
    frozen_statistics,
    protected_statistics,
    record_statistics,
    running_statistics,
    uses_batch_statistics,
)
from sicl.engine.sizes import layer_sizes
from sicl.engine.stubs import Stubs, changed_input, poison, tensors_of, with_first_tensor
from sicl.errors import InputError, UnsupportedModelError

Plan = Literal["thin", "wide", "whole"]
"""How to resume: stubs of one row stand in for the prefix ("thin"); stubs of the full batch, for networks
that read the batch size from their input ("wide"); the prefix is computed again ("whole")."""

VariantNorm = Literal["frozen", "batch"]


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
    computes logits from (perturbed) features without the part before the cut. Laws: resuming the features
    unchanged gives the logits of `run`, once or repeated, and nothing but the features reaches the logits from
    before the cut. Both are checked on the first batch (or on `example`), and again when the images' shape
    changes; `widest` is then how many values a row has at the widest layer after the cut. A network for which
    they do not hold is resumed by whole passes, and a warning says so once.
    Neither parameters, buffers, flags, hooks nor the global random state are left changed.

    Args:
        network: any module that returns logits or an object with `.logits`.
        layer: a module name, "NAME:input", or "auto" (see `sicl.engine.cut.find_point`).
        fresh: let all batch norms use the statistics of the batch at hand, also those that use running ones.
        example: images to check the laws with now instead of on the first batch.

    Raises:
        OptionError: no module has that name.
        UnsupportedModelError: the network cannot be cut there.
    """

    def __init__(
        self, network: nn.Module, layer: str = "auto", *, fresh: bool = False, example: Tensor | None = None
    ) -> None:
        self.network, self.fresh = network, fresh
        self.point: Point = find_point(network, layer)
        self.plan: Plan | None = None
        self.statistics: Statistics = {}
        self.widest = 0
        self._module = network.get_submodule(self.point.name)
        self._stubs = Stubs(self._module, self.point.side)
        self._images: Tensor | None = None
        self._checked: tuple[Any, ...] = ()
        self._overwritten = False
        if example is not None:
            self.check(example)

    @torch.no_grad()
    def run(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return (features at the cut, logits) of a clean pass, and remember its norm statistics."""
        self._ensure_checked(images)
        with self._mode(), record_statistics(self.network) as statistics:
            features, logits = self._tapped_pass(images)
        self.statistics, self._images = statistics, images
        return features, logits

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Return the features at the cut and stop there; enough for `resume` with "batch" norms."""
        out = self.features_of_view(images)
        self.statistics, self._images = {}, images
        return out

    @torch.no_grad()
    def features_of_view(self, images: Tensor) -> Tensor:
        """Return the features of another view of the last batch (a mirrored one, say), which stays the last."""
        self._ensure_checked(images)
        with self._mode(), protected_statistics(self.network), self._at_point(_stop_with):
            try:
                self.network(images)
            except _Reached as reached:
                return self._first(reached.value)
        raise self._never_called()

    @torch.no_grad()
    def resume(
        self, features: Tensor, *, norm: VariantNorm = "frozen", groups: int = 1, rows: Tensor | None = None
    ) -> Tensor:
        """Return the logits of features at the cut.

        Args:
            features: as `run` gave them, or V such batches stacked along dimension 0, variant after variant.
            norm: "frozen": batch norms keep what the last `run` normalised with; "batch": those that use
                batch statistics compute them anew, for each of the stacked batches apart.
            groups: how many batches are stacked.
            rows: which rows of the last batch the features belong to, if not all.
        """
        if self._images is None or self.plan is None:
            raise InputError("`Split.resume` needs a clean pass first: call `run(images)` before it.")
        expected = (len(self._images) if rows is None else len(rows)) * groups
        if len(features) != expected:
            raise InputError(
                f"`features` must have {expected} rows ({groups} stacked batches), got {len(features)}; "
                "set `groups` to the number of variants."
            )
        with self._mode():
            if norm == "batch" and groups > 1 and not can_group(self.batch_dependent()):
                parts = features.chunk(groups)
                return torch.cat([self.resume(part, norm=norm, rows=rows) for part in parts])
            with self._norms(norm, groups):
                return self._resumed_pass(features, self.plan, groups, rows)

    @torch.no_grad()
    def pass_of(self, images: Tensor, *, norm: VariantNorm = "frozen") -> Tensor:
        """Return the logits of a whole pass of other images, normalised as variants of the last batch are."""
        with self._mode(), self._norms(norm, 1):
            return logits_of(self.network(images))

    def batch_dependent(self) -> list[Any]:
        """Return the batch norms that use the batch's own statistics as the network stands (`fresh`: all)."""
        return [m for m in batch_norms(self.network) if self.fresh or uses_batch_statistics(m)]

    def _mode(self) -> AbstractContextManager[None]:
        return fresh_statistics(self.network) if self.fresh else nullcontext()

    @contextmanager
    def _norms(self, norm: str, groups: int) -> Iterator[None]:
        if norm == "frozen":
            if not self.statistics and self.batch_dependent():
                raise InputError('`norm="frozen"` needs a clean pass by `run`, not by `features`.')
            with frozen_statistics(self.network, self.statistics):
                yield
        else:
            with batch_statistics(self.network, groups=groups, modules=self.batch_dependent()):
                yield

    def _tapped_pass(self, images: Tensor) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []

        def tap(value: Any) -> Any:
            if not seen:
                features = self._first(value)
                seen.append(features.clone() if self._overwritten else features)
            return value

        with self._at_point(tap):
            logits = logits_of(self.network(images))
        if not seen:
            raise self._never_called()
        return seen[0], logits

    @contextmanager
    def _at_point(self, change: Callable[[Any], Any]) -> Iterator[None]:
        """Pass what stands at the cut through `change` while the block runs."""
        if self.point.side == "output":
            handle = self._module.register_forward_hook(lambda _m, _a, output: change(output))
        else:
            handle = self._module.register_forward_pre_hook(
                lambda _m, args, kwargs: changed_input(args, kwargs, change), with_kwargs=True
            )
        try:
            yield
        finally:
            handle.remove()

    def _resumed_pass(self, features: Tensor, plan: Plan, groups: int, rows: Tensor | None = None) -> Tensor:
        assert self._images is not None
        reached = False
        if self._overwritten:
            features = features.clone()

        def swap(value: Any) -> Any:
            nonlocal reached
            if reached:
                return value
            reached = True
            return with_first_tensor(value, features)

        with ExitStack() as stack:
            if plan == "whole":
                chosen = self._images if rows is None else self._images[rows]
                images = chosen.repeat(groups, *([1] * (chosen.ndim - 1)))
            else:
                images = poison(self._images, features.shape[0] if plan == "wide" else 1)
                stack.enter_context(self._stubs.installed(len(images), lambda: reached))
            stack.enter_context(self._at_point(swap))
            return logits_of(self.network(images))

    def _ensure_checked(self, images: Tensor) -> None:
        if self.plan is None or self._checked != _kind(images):
            self.check(images)

    @torch.no_grad()
    def check(self, images: Tensor) -> Plan:
        """Find the cheapest plan under which the laws of this class hold for these images, and keep it."""
        rows = images[:4] if len(images) > 1 else torch.cat([images, images.flip(-1) * 0.5])
        before, self.plan, self._overwritten = self.plan, None, True
        self._images, self._checked = rows, _kind(images)
        with running_statistics(self.network), record_statistics(self.network) as statistics:
            self._stubs.trace(self.network, rows)
            with layer_sizes(self.network, self._at_point) as widths:
                features, logits = self._tapped_pass(rows)
            self.widest = max(value // len(rows) for value in (features.numel(), *widths))
            self._overwritten = False
            self._overwritten = not torch.equal(self._tapped_pass(rows)[0], features)
        self.statistics = statistics
        plans: tuple[Plan, ...] = ("thin", "wide", "whole")
        self.plan = next((plan for plan in plans if self._laws_hold(plan, features, logits)), None)
        if self.plan is None:
            raise UnsupportedModelError(
                f"{type(self.network).__name__} does not give the same logits when it is resumed at "
                f"{str(self.point)!r}; name another `layer`."
            )
        if self.plan == "whole" and before != "whole":
            warnings.warn(
                f"{type(self.network).__name__} cannot be resumed at {str(self.point)!r} (something bypasses "
                "that layer): SICL will use whole passes, which is slower. Name another `layer` to avoid it.",
                stacklevel=2,
            )
        return self.plan

    def _laws_hold(self, plan: Plan, features: Tensor, logits: Tensor) -> bool:
        # Bypasses show as NaN; what is left is rounding, which tf32 and 16-bit networks have much of.
        relative = 2e-3 if torch.finfo(features.dtype).eps < 1e-6 else 5e-2
        tolerance = relative * float(logits.abs().max()) + 1e-5
        for groups in (1, 2):
            stacked = torch.cat([features] * groups)
            try:
                with frozen_statistics(self.network, self.statistics), running_statistics(self.network):
                    again = self._resumed_pass(stacked, plan, groups)
            except Exception:  # whatever a network does with stubs, it means: not this plan
                if plan == "whole":
                    raise
                return False
            if again.shape[0] != stacked.shape[0]:
                return False
            if not float((again - torch.cat([logits] * groups)).abs().max()) <= tolerance:
                return False
        return True

    def _first(self, value: Any) -> Tensor:
        tensors = tensors_of(value)
        if not tensors:
            raise UnsupportedModelError(
                f"{str(self.point)!r} gives {type(value).__name__}, not a tensor; name another `layer`."
            )
        return tensors[0]

    def _never_called(self) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{type(self.network).__name__} never called its module {self.point.name!r}; name another `layer`."
        )


class _Reached(Exception):
    """Ends a pass at the cut."""

    def __init__(self, value: Any) -> None:
        self.value = value


def _stop_with(value: Any) -> Any:
    raise _Reached(value)


def _kind(images: Tensor) -> tuple[Any, ...]:
    return (*images.shape[1:], images.dtype, images.device)
