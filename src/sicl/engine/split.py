"""Run a classifier up to a layer once, and on from it as often as you like."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sicl.engine.cut import Point, find_point
from sicl.engine.norms import (
    Recorded,
    Statistics,
    batch_norms,
    batch_statistics,
    can_group,
    frozen_statistics,
    protected_statistics,
    record_statistics,
    running_statistics,
    statistics_of,
)
from sicl.engine.stubs import Stubs, changed_input, probe
from sicl.engine.trees import tensors_in, with_first_tensor
from sicl.errors import InputError, UnsupportedModelError

Plan = Literal["thin", "wide", "whole"]
"""How to resume: stubs of one row stand in for the prefix ("thin"); stubs of the full batch, for networks
that read the batch size from their input ("wide"); the prefix is computed again ("whole")."""


def logits_of(output: Any) -> Tensor:
    """Return the logits of a classifier's output: a tensor, an object with `.logits`, or a dict with "logits"."""
    logits = output
    if not isinstance(output, Tensor):
        logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.ndim != 2:
        raise UnsupportedModelError(
            "The model must return N x C logits, or an object or dict with `logits`, got "
            f"{f'shape {tuple(logits.shape)}' if isinstance(logits, Tensor) else type(output).__name__}; "
            "wrap it in a module that does."
        )
    # A softmax of one value is 1, whatever the value: every vote would agree.
    if logits.shape[1] == 1:
        raise UnsupportedModelError(
            "The model returns one logit a sample (a sigmoid head), of which there is no softmax; wrap it in "
            "`sicl.models.outputs.TwoClasses(model)`, which gives the logits (0, z)."
        )
    return logits


def check_logits(logits: Tensor) -> None:
    """Raise `UnsupportedModelError` if these are no logits: NaN, or rows of probabilities. Waits for the device."""
    if not bool(logits.isfinite().all()):
        raise UnsupportedModelError(
            "The model gives NaN or infinite logits for this batch; check its weights and norm statistics, and that "
            "images are floats in [0, 1]."
        )
    # Softmax of a softmax would be almost flat, and nobody would see why.
    sums = logits.float().sum(dim=1)
    if bool((logits >= 0).all()) and bool(((sums - 1).abs() < 1e-3).all()):
        raise UnsupportedModelError(
            "The model returns probabilities (no value is negative, every row sums to 1), but logits are needed; wrap "
            "it in `sicl.models.outputs.FromProbabilities(model)`, or leave out its last softmax."
        )


@dataclass(frozen=True)
class Begun:
    """A clean batch, run up to the cut: all that resuming variants of it needs.

    Args:
        images: the batch.
        features: what stands at the cut.
        base: the features to make variants of: the same, in the dtype that variants are computed in.
        recorded: what the network's batch norms normalised with, where variants keep that.
        moments: the same for an engine's twin: all means and variances in a row (2 x T).
        logits: of the whole pass, if it was made.
    """

    images: Tensor
    features: Tensor
    base: Tensor
    recorded: Recorded = field(default_factory=dict)
    moments: Tensor | None = None
    logits: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)


class Split:
    """A classifier cut at one layer.

    `begun = split.begin(images)` runs the network up to the cut; `split.resume(features, begun)` computes logits
    from (perturbed) features without the part before the cut. Laws: resuming the features unchanged gives the
    network's logits, once or repeated, and nothing but the features reaches the logits from before the cut. Both
    are checked on the first batch (or by `check`), and again when the images' shape changes; `widest` is then
    how many values a row has at the widest layer after the cut, `widest_before` the same before it. A network for
    which they do not hold is resumed by whole passes, and a warning says so once. `head` is the name of the linear
    layer whose output the logits are.
    Neither parameters, buffers, flags, hooks nor the global random state are left changed.

    Args:
        network: any module that returns logits or an object with `.logits`.
        layer: a module name, "NAME:input", or "auto" (see `sicl.engine.cut.find_point`).
        statistics: what batch norms normalise with: None: each as the network stands; "running" or "batch": all
            of them with these (variants each with their own batch's); "frozen": as the network stands, but
            variants keep what the clean batch was normalised with.

    Raises:
        OptionError: no module has that name.
        UnsupportedModelError: the network cannot be cut there.
    """

    def __init__(
        self, network: nn.Module, layer: str = "auto", *, statistics: Statistics | None = None
    ) -> None:
        self.network, self.statistics = network, statistics
        self.point: Point = find_point(network, layer)
        self.plan: Plan | None = None
        self.widest = self.widest_before = 0
        self.head: str | None = None
        self._module = network.get_submodule(self.point.name)
        self._stubs = Stubs(self._module, self.point.side)
        # One row of images is all that stubs need; the batch itself is not kept.
        self._row: Tensor | None = None
        self._checked: tuple[Any, ...] = ()
        self._overwritten, self._stacks = False, True

    @torch.no_grad()
    def begin(self, images: Tensor, like: Recorded | None = None) -> Begun:
        """Run a clean batch up to the cut, or all the way if variants keep its statistics.

        Args:
            images: the batch.
            like: statistics to normalise it with, and variants of it (those must be "frozen"), in place of its own.
        """
        if like is not None:
            with frozen_statistics(self.network, like):
                features = self.features(images)
            return Begun(images, features, features, like)
        # Without batch norms that look at the batch there is nothing to record, and half a pass is enough.
        if self.statistics == "frozen" and self.batch_dependent():
            return self.run(images)
        features = self.features(images)
        return Begun(images, features, features)

    @torch.no_grad()
    def run(self, images: Tensor) -> Begun:
        """Run a clean batch all the way: with logits, and what its batch norms normalised with."""
        self._ensure_checked(images)
        with self._mode(), record_statistics(self.network) as recorded:
            features, logits = self._tapped_pass(images)
        return Begun(images, features, features, recorded, logits=logits)

    @torch.no_grad()
    def record(self, features: Tensor, begun: Begun) -> Recorded:
        """Return what batch norms normalise features of a clean batch with, where each uses their own statistics."""
        assert self.plan is not None
        with self._mode(), record_statistics(self.network) as recorded:
            self._resumed_pass(features, self.plan, 1, begun.images)
        return recorded

    @torch.no_grad()
    def features(self, images: Tensor, *, groups: int = 1) -> Tensor:
        """Return what stands at the cut, and stop there; of `groups` stacked batches, each as if it came alone."""
        self._ensure_checked(images)
        if groups > 1 and not self._stacks:
            return torch.cat([self.features(part) for part in images.chunk(groups)])
        # An exception is the only way out of another author's forward.
        with self._mode(), self._apart(groups), self._at_point(_stop_with):
            try:
                self.network(images)
            except _Reached as reached:
                return self._first(reached.value)
        raise self._never_called()

    @torch.no_grad()
    def resume(
        self, features: Tensor, begun: Begun, *, groups: int = 1, rows: Tensor | None = None
    ) -> Tensor:
        """Return the logits of features at the cut.

        Args:
            features: as the batch's, or V such batches stacked along dimension 0, variant after variant.
            begun: the clean batch.
            groups: how many batches are stacked.
            rows: which rows of the batch the features belong to, if not all.
        """
        assert self.plan is not None
        expected = (len(begun) if rows is None else len(rows)) * groups
        if len(features) != expected:
            raise InputError(
                f"`features` must have {expected} rows ({groups} stacked batches), got {len(features)}; "
                "set `groups` to the number of variants."
            )
        with self._mode():
            # A norm of another author may mix stacked batches: then they go one by one.
            if groups > 1 and not self._stacks and self.statistics != "frozen":
                parts = features.chunk(groups)
                return torch.cat([self.resume(part, begun, rows=rows) for part in parts])
            images = begun.images if rows is None else begun.images[rows]
            with self._norms(begun, groups):
                return self._resumed_pass(features, self.plan, groups, images)

    @torch.no_grad()
    def logits(self, images: Tensor, begun: Begun) -> Tensor:
        """Return the logits of a whole pass of other images, normalised as variants of the batch are."""
        with self._mode(), self._norms(begun, 1):
            return logits_of(self.network(images))

    def batch_dependent(self) -> list[_BatchNorm]:
        """Return the batch norms that use the batch's own statistics in a clean pass."""
        norms = batch_norms(self.network)
        if self.statistics == "running":
            # They have nothing else to normalise with.
            return [norm for norm in norms if norm.running_mean is None]
        return [norm for norm in norms if self.statistics == "batch" or statistics_of(norm) == "batch"]

    def _mode(self) -> AbstractContextManager[None]:
        modes = {"batch": batch_statistics, "running": running_statistics}
        return modes[self.statistics](self.network) if self.statistics in modes else nullcontext()

    def _apart(self, groups: int) -> AbstractContextManager[None]:
        if groups == 1:
            return protected_statistics(self.network)
        return batch_statistics(self.network, groups=groups, modules=self.batch_dependent())

    def _norms(self, begun: Begun, groups: int) -> AbstractContextManager[None]:
        if self.statistics == "frozen":
            return frozen_statistics(self.network, begun.recorded)
        return batch_statistics(self.network, groups=groups, modules=self.batch_dependent())

    def _tapped_pass(self, images: Tensor) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []

        def tap(value: Any) -> Any:
            if not seen:
                # Only the first call: a module may be shared, and the cut is where it is first reached.
                features = self._first(value)
                # In-place layers after the cut would write into what variants are made from.
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
            hook = self._module.register_forward_hook(lambda _m, _a, output: change(output))
        else:
            hook = self._module.register_forward_pre_hook(
                lambda _m, args, kwargs: changed_input(args, kwargs, change), with_kwargs=True
            )
        with hook:
            yield

    def resumed(self, features: Tensor, groups: int) -> Tensor:
        """Run the rest of the network as it stands, without the part before the cut (not with "whole" passes)."""
        assert self.plan is not None
        return self._resumed_pass(features, self.plan, groups, None)

    def _resumed_pass(self, features: Tensor, plan: Plan, groups: int, images: Tensor | None) -> Tensor:
        # Before the cut stubs answer; from it on the network's own modules do.
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
                assert images is not None
                # The prefix runs in vain here, but its output is replaced at the cut.
                images = images.repeat(groups, *([1] * (images.ndim - 1)))
            else:
                assert self._row is not None
                # NaN in, so that a way around the cut shows in the logits; of one row of memory whatever the batch.
                rows = len(features) if plan == "wide" else 1
                images = torch.full_like(self._row, float("nan")).expand(rows, *self._row.shape[1:])
                stack.enter_context(self._stubs.installed(len(images), lambda: reached))
            stack.enter_context(self._at_point(swap))
            return logits_of(self.network(images))

    def of_copy(self, network: nn.Module, dtype: torch.dtype) -> Split:
        """Return the same cut of a copy of the network in another dtype, which needs no check of its own."""
        assert self._row is not None
        split = copy.copy(self)
        split.network, split.statistics = network, None
        split._module = network.get_submodule(self.point.name)
        split._row = self._row.to(dtype)
        split._checked = _kind(split._row)
        split._stubs = self._stubs.of_copy(dict(zip(self.network.modules(), network.modules())), dtype)
        return split

    def _ensure_checked(self, images: Tensor) -> None:
        if self.plan is None or self._checked != _kind(images):
            self.check(images)

    @torch.no_grad()
    def check(self, images: Tensor) -> Plan:
        """Find the cheapest plan under which the laws of this class hold for these images, and keep it."""
        # A few rows suffice, and must differ: rows that are alike hide what depends on the row.
        rows = probe(images)
        before, self.plan = self.plan, None
        self._row, self._checked = rows[:1], _kind(images)
        clean = self._first_pass(rows)
        assert clean.logits is not None
        check_logits(clean.logits)
        self._stacks = all(map(can_group, self.batch_dependent()))
        # Cheapest first.
        plans: tuple[Plan, ...] = ("thin", "wide", "whole")
        self.plan = next((plan for plan in plans if self._laws_hold(plan, clean)), None)
        if self.plan is None:
            raise UnsupportedModelError(
                f"{type(self.network).__name__} does not give the same logits when it is resumed at "
                f"{str(self.point)!r}; name another `layer`."
            )
        self._stacks = self._stacks and self._stacks_before(rows)
        if self.plan == "whole" and before != "whole":
            warnings.warn(
                f"{type(self.network).__name__} cannot be resumed at {str(self.point)!r} (something bypasses "
                "that layer): SICL will use whole passes, which is slower. Name another `layer` to avoid it.",
                stacklevel=2,
            )
        return self.plan

    def _first_pass(self, rows: Tensor) -> Begun:
        """Learn stubs, the widest layer and whether features are overwritten, in one pass: a first batch waits."""
        seen: list[tuple[Tensor, Tensor]] = []
        before, after = [rows.numel()], [0]
        linear: list[tuple[nn.Module, Tensor]] = []

        def tap(value: Any) -> Any:
            if not seen:
                seen.append(((features := self._first(value)), features.clone()))
            return value

        def note(module: nn.Module, _args: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                (after if seen else before).append(output.numel())
                linear[:] = [(module, output)] if seen and isinstance(module, nn.Linear) else linear

        with ExitStack() as hooks:
            # Statistics of four probes are no statistics; the laws do not depend on which are used.
            hooks.enter_context(running_statistics(self.network))
            recorded = hooks.enter_context(record_statistics(self.network))
            hooks.enter_context(self._at_point(tap))
            for module in self.network.modules():
                # Layers only: containers hand on what their last layer gave. (Parametrised ones have children.)
                if next(module.children(), None) is None or isinstance(module, nn.Linear):
                    hooks.enter_context(module.register_forward_hook(note))
            logits = logits_of(self._stubs.trace(self.network, rows))
        if not seen:
            raise self._never_called()
        afterwards, features = seen[0]
        # By identity: logits that were scaled or sliced afterwards are not the layer's own.
        heads = [module for module, output in linear if output is logits]
        self.head = next((name for name, module in self.network.named_modules() if module in heads), None)
        self.widest, self.widest_before = (
            max(features.numel(), *sizes) // len(rows) for sizes in (after, before)
        )
        self._overwritten = not torch.equal(afterwards, features)
        return Begun(rows, features, features, recorded, logits=logits)

    def _stacks_before(self, rows: Tensor) -> bool:
        """Say whether stacked batches have the features of each: nothing before the cut but norms mixes rows."""
        # A batch with other statistics: two that are alike would not show it.
        other = rows / 2
        found = self.features(torch.cat([rows, other]), groups=2)[len(rows) :]
        return _close(found, self.features(other), found.dtype)

    def _laws_hold(self, plan: Plan, clean: Begun) -> bool:
        assert clean.logits is not None
        # Stacked: a network may read the batch size and reshape by it.
        stacked = torch.cat([clean.features] * 2)
        try:
            with frozen_statistics(self.network, clean.recorded), running_statistics(self.network):
                again = self._resumed_pass(stacked, plan, 2, clean.images)
        except Exception:  # whatever a network does with stubs, it means: not this plan
            if plan == "whole":
                raise
            return False
        return _close(again, torch.cat([clean.logits] * 2), clean.features.dtype)

    def _first(self, value: Any) -> Tensor:
        tensors = tensors_in(value)
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


def _close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    """Say whether two ways of computing in `dtype` gave the same; NaN, as bypasses show, is never the same."""
    if found.shape != expected.shape:
        return False
    # What is left is rounding, which tf32 and 16-bit networks have much of.
    relative = 2e-3 if torch.finfo(dtype).eps < 1e-6 else 5e-2
    return float((found - expected).abs().max()) <= relative * float(expected.abs().max()) + 1e-5


def _kind(images: Tensor) -> tuple[Any, ...]:
    return (*images.shape[1:], images.dtype, images.device)
