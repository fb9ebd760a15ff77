"""A private copy of a network in a compute dtype, refreshed in place, to resume many variants quickly."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sicl.engine.norms import (
    Statistics,
    batch_norms,
    can_group,
    forward_with,
    grouped_batch_norm,
    statistics_of,
)
from sicl.engine.split import Split


class CannotTwin(Exception):
    """The network cannot be run as a twin; the message says why."""


class Slot:
    """A batch norm of the twin, and the live layer its numbers come from.

    With running or frozen statistics the layer is x * scale + shift. All four tensors are windows of the twin's,
    so that they are written for all layers at once. `statistics` is what variants are normalised with.

    Args:
        twin: of which it is a part.
        live: the network's own layer.
        own: the twin's layer, whose affine parameters are the live ones; the slot is its forward.
        moments: 2 x C, where the mean and the variance stand.
        affine: 2 x C, where scale and shift stand.
    """

    def __init__(
        self, twin: Twin, live: _BatchNorm, own: _BatchNorm, moments: Tensor, affine: Tensor
    ) -> None:
        self.twin, self.live, self.own = twin, live, own
        self.statistics: Statistics = "running"
        if live in twin.live.batch_dependent():
            self.statistics = "frozen" if twin.live.statistics == "frozen" else "batch"
        # Windows, not copies: writing the twin's row of all statistics writes these.
        self.mean, self.variance = moments
        self.scale, self.shift = affine

    def __call__(self, x: Tensor) -> Tensor:
        return forward_with(self.own, self.norm, x)

    def norm(self, x: Tensor) -> Tensor:
        """Normalise as the pass under way does."""
        if self.statistics == "batch":
            return self.grouped(x, self.twin.groups)
        records = self.twin.recording and self.statistics == "frozen"
        return self.recording(x) if records else self.fixed(x)

    def fixed(self, x: Tensor) -> Tensor:
        """Normalise with the statistics at hand."""
        return _affine(x, self.scale, self.shift)

    def recording(self, x: Tensor) -> Tensor:
        """Normalise with the statistics of `x`, and keep them."""
        own = self.own
        if x.device.type == "cpu":
            # The native kernel leaves its statistics in the buffers, much faster than a reduction of x.
            mean, variance = torch.zeros_like(self.mean), torch.ones_like(self.mean)
            n = x.numel() // x.shape[1]
            out = nn.functional.batch_norm(x, mean, variance, own.weight, own.bias, True, 1.0, own.eps)
            self.mean.copy_(mean)
            self.variance.copy_(variance * ((n - 1) / n))
            return out
        # In float32: a variance in 16 bits is mostly rounding.
        variance, mean = torch.var_mean(x.float(), dim=[0, *range(2, x.ndim)], correction=0)
        self.mean.copy_(mean)
        self.variance.copy_(variance)
        scale = torch.rsqrt(variance + own.eps)
        scale = scale if own.weight is None else scale * own.weight
        shift = -mean * scale if own.bias is None else own.bias - mean * scale
        return _affine(x, scale, shift)

    def grouped(self, x: Tensor, groups: int) -> Tensor:
        """Normalise each of `groups` stacked batches with its own statistics."""
        return grouped_batch_norm(x, groups, self.own.weight, self.own.bias, self.own.eps)


class Twin:
    """The part of a split network after its cut, as a copy that computes in `dtype`, channels last.

    `load` writes the live parameters into the copy, in place: addresses never change, so what was traced or captured
    from it stays valid. The last linear layer stays in float32, since confidence is read off its output.

    Args:
        split: the live network, already checked.
        dtype: to compute in.
        shell: `shell_of` the network, if it was made before; it belongs to the twin from now on.

    Raises:
        CannotTwin: the network cannot be copied, cut or cast.
    """

    def __init__(self, split: Split, dtype: torch.dtype, shell: nn.Module | None = None) -> None:
        self.live, self.dtype = split, dtype
        # What the pass under way is; the norms' forwards have no arguments to be told by.
        self.groups, self.recording = 1, False
        self.folded: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        try:
            self.network = (shell_of(split.network) if shell is None else shell).eval()
        except Exception as error:
            raise CannotTwin(f"the network cannot be copied ({error})") from error
        # Before the cast: norms keep float32 parameters, which scale and shift are made from.
        self.slots = self._take_norms()
        self.key = self._stands()
        self._cast()
        self.sources = self._paired()
        self.split = split.of_copy(self.network, dtype)
        if split.plan == "whole":
            raise CannotTwin("something bypasses the cut")

    @property
    def records(self) -> bool:
        """Whether a clean pass has to record statistics before variants are resumed."""
        return any(slot.statistics == "frozen" for slot in self.slots)

    def fits(self) -> bool:
        """Say whether the network's norms still use the statistics that the twin was made for."""
        return self._stands() == self.key

    def _stands(self) -> tuple[str, ...]:
        return tuple(statistics_of(slot.live) for slot in self.slots)

    @torch.no_grad()
    def stage(self) -> Tensor:
        """Return the statistics that stand in the twin, with the live running ones among them, 2 x T."""
        running = [slot for slot in self.slots if slot.statistics == "running"]
        if running:
            mine = [tensor for slot in running for tensor in (slot.mean, slot.variance)]
            live = [tensor for slot in running for tensor in (slot.live.running_mean, slot.live.running_var)]
            torch._foreach_copy_(mine, live)  # type: ignore[arg-type]
        return self.moments.clone()

    @torch.no_grad()
    def load(self, moments: Tensor, only: Collection[int] | None = None) -> None:
        """Take over the live parameters, and statistics as `stage` gave them; make scales and shifts of both.

        Args:
            moments: 2 x T.
            only: ids of the twin's tensors to take over; all if None.
        """
        # A launch for each kind of copy instead of one for each of some hundred tensors: one kernel copies
        # between the same dtypes, with the same strides on both sides or not.
        groups: dict[Any, list[tuple[Tensor, Tensor]]] = {}
        for target, table, name in self.sources:
            if only is None or id(target) in only:
                live = table[name]
                kind = target.dtype, live.dtype, target.stride() == live.stride()
                groups.setdefault(kind, []).append((target, live))
        for pairs in groups.values():
            torch._foreach_copy_([target for target, _ in pairs], [live for _, live in pairs])
        # Then no statistics are kept, and no scale depends on any.
        if all(slot.statistics == "batch" for slot in self.slots):
            return
        self.moments.copy_(moments)
        if self._weights:
            torch._foreach_copy_(self._weights, [getattr(s.live, name) for s, name in self._affines])
        # For all layers at once, since their channels stand in a row.
        scale = torch.rsqrt(self.moments[1] + self._eps) * self._parameters[0]
        self.affine[0].copy_(scale)
        self.affine[1].copy_(self._parameters[1] - self.moments[0] * scale)

    @torch.no_grad()
    def resume(self, features: Tensor, groups: int) -> Tensor:
        """Return float32 logits of `groups` stacked batches of features."""
        self.groups = groups
        return self.split.resumed(features, groups).float()

    def record(self, features: Tensor) -> None:
        """Take the statistics of the clean batch from its features."""
        self.recording = True
        try:
            self.resume(features, 1)
        finally:
            self.recording = False

    def _take_norms(self) -> list[Slot]:
        """Put the twin's norms in place of the network's, all their numbers in a row."""
        pairs = list(zip(batch_norms(self.live.network), batch_norms(self.network)))
        sizes = [live.num_features for live, _ in pairs]
        like = next(iter(self.network.parameters()), torch.zeros(()))
        self.moments = torch.zeros((2, sum(sizes)), device=like.device)
        # Variance 1 and mean 0 change nothing until something is loaded.
        self.moments[1] = 1
        self.affine, self._parameters = self.moments.flip(0), self.moments.flip(0)
        eps = [torch.full((live.num_features,), live.eps, device=like.device) for live, _ in pairs]
        self._eps = torch.cat(eps) if eps else torch.zeros(0)
        windows = [
            torch.split(tensor, sizes, dim=1) for tensor in (self.moments, self.affine, self._parameters)
        ]
        slots: list[Slot] = []
        self._weights: list[Tensor] = []
        self._affines: list[tuple[Slot, str]] = []
        for (live, own), moments, affine, parameters in zip(pairs, *windows):
            # Its forward is not understood, and the twin would leave out what it does besides.
            if not can_group(live):
                raise CannotTwin(f"{type(own).__name__} has its own forward")
            slot = Slot(self, live, own, moments, affine)
            for name, place in zip(("weight", "bias"), parameters):
                if getattr(live, name) is not None:
                    self._weights.append(place)
                    self._affines.append((slot, name))
            # On the instance, as stubs are.
            own.__dict__["forward"] = slot
            slots.append(slot)
        return slots

    def _cast(self) -> None:
        """Give the shell tensors of its own, in the compute dtype where that is good enough."""
        # By identity: a tensor may stand in several modules.
        kept = {id(t) for slot in self.slots for t in _own(slot.live)}
        # Confidence is a difference of logits: 16 bits there would quantise it.
        if self.live.head is not None:
            kept |= {id(t) for t in _own(self.live.network.get_submodule(self.live.head))}
            self.network.get_submodule(self.live.head).register_forward_pre_hook(_to_float)
        # From the live tables: since the shell was made a network may have moved to another device.
        for live, own in zip(self.live.network.modules(), self.network.modules()):
            for field in ("_parameters", "_buffers"):
                for name, tensor in getattr(live, field).items():
                    if tensor is not None:
                        low = tensor.is_floating_point() and id(tensor) not in kept
                        getattr(own, field)[name] = _recast(tensor, self.dtype if low else tensor.dtype)

    def _paired(self) -> list[tuple[Tensor, dict[str, Tensor], str]]:
        """The twin's tensors with where to find the live value (looked up anew at every load)."""
        out = []
        for live, own in zip(self.live.network.modules(), self.network.modules()):
            for field in ("_parameters", "_buffers"):
                for name, tensor in getattr(own, field).items():
                    if tensor is not None and not (isinstance(own, _BatchNorm) and field == "_buffers"):
                        out.append((tensor, getattr(live, field), name))
        return out


def shell_of(network: nn.Module) -> nn.Module:
    """Return a copy of a network that still shares its tensors: what a twin is made of, without the memory."""
    tensors = {id(tensor): tensor for tensor in (*network.parameters(), *network.buffers())}
    return copy.deepcopy(network, tensors)


def _own(module: nn.Module) -> list[Tensor]:
    return [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]


def _affine(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    shape = (1, -1, *[1] * (x.ndim - 2))
    return torch.addcmul(shift.to(x.dtype).view(shape), x, scale.to(x.dtype).view(shape))


def _recast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    layout = torch.channels_last if tensor.ndim == 4 else torch.preserve_format
    cast = tensor.detach().to(dtype, memory_format=layout, copy=True)
    return nn.Parameter(cast, requires_grad=False) if isinstance(tensor, nn.Parameter) else cast


def _to_float(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.float() if isinstance(a, Tensor) else a for a in args)
