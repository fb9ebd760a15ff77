"""A private copy of a network in a compute dtype, refreshed in place, to resume many variants quickly."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sicl.engine.norms import grouped_batch_norm, is_plain, uses_batch_statistics
from sicl.engine.split import Split, logits_of


class CannotTwin(Exception):
    """The network cannot be run as a twin; the message says why."""


class Slot:
    """A batch norm of the twin, and the live layer its numbers come from.

    With fixed statistics the layer is x * scale + shift; `mean` and `variance` hold the statistics.

    Args:
        live: the network's own layer.
        own: the twin's layer, whose affine parameters are the live ones.
        batchwise: whether it uses the statistics of the batch at hand.
    """

    def __init__(self, live: _BatchNorm, own: _BatchNorm, *, batchwise: bool) -> None:
        self.live, self.own, self.batchwise = live, own, batchwise
        like = live.weight if live.weight is not None else live.running_mean
        self.mean = torch.zeros(live.num_features, device=None if like is None else like.device)
        self.variance, self.scale = torch.ones_like(self.mean), torch.ones_like(self.mean)
        self.running = torch.zeros_like(self.mean), torch.ones_like(self.mean)
        self.shift = torch.zeros_like(self.mean)
        if live.running_mean is not None and live.running_var is not None:
            self.fix(live.running_mean, live.running_var)

    @torch.no_grad()
    def fix(self, mean: Tensor, variance: Tensor) -> None:
        """Take these statistics and make scale and shift from them and the live parameters, in place."""
        self.mean.copy_(mean)
        self.variance.copy_(variance)
        scale = torch.rsqrt(self.variance + self.live.eps)
        if self.live.weight is not None:
            scale = scale * self.live.weight.float()
        self.scale.copy_(scale)
        shift = -self.mean * scale
        self.shift.copy_(shift if self.live.bias is None else shift + self.live.bias.float())

    def fixed(self, x: Tensor) -> Tensor:
        """Normalise with the statistics at hand."""
        shape = (1, -1, *[1] * (x.ndim - 2))
        return torch.addcmul(self.shift.to(x.dtype).view(shape), x, self.scale.to(x.dtype).view(shape))

    def recording(self, x: Tensor) -> Tensor:
        """Normalise with the statistics of `x`, and keep them."""
        if x.device.type == "cpu":
            # The native kernel leaves its statistics in the buffers, much faster than a reduction of x.
            mean, variance = torch.zeros_like(self.mean), torch.ones_like(self.mean)
            own, n = self.own, x.numel() // x.shape[1]
            out = nn.functional.batch_norm(x, mean, variance, own.weight, own.bias, True, 1.0, own.eps)
            self.fix(mean, variance * ((n - 1) / n))
            return out
        dims = [0, *range(2, x.ndim)]
        variance, mean = torch.var_mean(x.float(), dim=dims, correction=0)
        self.fix(mean, variance)
        return self.fixed(x)

    def grouped(self, x: Tensor, groups: int) -> Tensor:
        """Normalise each of `groups` stacked batches with its own statistics."""
        return grouped_batch_norm(x, groups, self.own.weight, self.own.bias, self.own.eps)


class Twin:
    """The part of a split network after its cut, as a copy that computes in `dtype`, channels last.

    `refresh` writes the live parameters into the copy, in place: addresses never change, so what was traced
    or captured from it stays valid. The last linear layer stays in float32, since confidence is read off
    its output.

    Args:
        split: the live network, already checked.
        dtype: to compute in.
        images: an example batch.
        frozen: whether variants keep the clean batch's statistics, also where the network uses the batch's.

    Raises:
        CannotTwin: the network cannot be copied, cut or cast.
    """

    def __init__(self, split: Split, dtype: torch.dtype, images: Tensor, *, frozen: bool) -> None:
        self.live, self.dtype, self.frozen = split, dtype, frozen
        self.groups = 1
        self.folded: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.mode: Literal["fixed", "grouped", "record"] = "fixed"
        try:
            self.network = copy.deepcopy(split.network).requires_grad_(False).eval()
        except Exception as error:
            raise CannotTwin(f"the network cannot be copied ({error})") from error
        self.slots = self._take_norms()
        self.stage()
        self.key = self._flags()
        self._cast(images)
        self.sources = self._paired()
        self.split = Split(self.network, str(split.point))
        try:
            self.plan = self.split.check(images[:4].to(dtype))
        except Exception as error:
            raise CannotTwin(f"the network does not run in {dtype} ({error})") from error
        if self.plan == "whole":
            raise CannotTwin("something bypasses the cut")
        self.mode = "fixed" if frozen else "grouped"

    @property
    def records_first(self) -> bool:
        """Whether a clean pass has to record statistics before variants are resumed."""
        return self.frozen and any(slot.batchwise for slot in self.slots)

    def fits(self) -> bool:
        """Say whether the network's modes are still those the twin was made for."""
        return self._flags() == self.key

    def _flags(self) -> tuple[bool, ...]:
        return tuple(uses_batch_statistics(slot.live) for slot in self.slots)

    @torch.no_grad()
    def stage(self) -> None:
        """Bring the live running statistics to where `refresh` reads them: the live tensors may move in memory."""
        pairs = [
            (mine, live)
            for slot in self.slots
            if not slot.batchwise
            for mine, live in zip(slot.running, (slot.live.running_mean, slot.live.running_var))
        ]
        if pairs:
            torch._foreach_copy_([mine for mine, _ in pairs], [live for _, live in pairs])  # type: ignore[misc]

    @torch.no_grad()
    def refresh(self, only: Collection[int] | None = None, slots: Collection[Slot] | None = None) -> None:
        """Take over the live parameters, and the staged running statistics of norms that use them.

        Args:
            only: ids of the twin's tensors to refresh; all if None.
            slots: the batch norms to refresh; all if None.
        """
        chosen = [(s[0], s[1][s[2]]) for s in self.sources if only is None or id(s[0]) in only]
        groups: dict[Any, list[tuple[Tensor, Tensor]]] = {}
        for target, live in chosen:
            groups.setdefault(_kind_of_copy(target, live), []).append((target, live))
        for pairs in groups.values():
            torch._foreach_copy_([target for target, _ in pairs], [live for _, live in pairs])
        for slot in self.slots if slots is None else slots:
            if not slot.batchwise:
                slot.fix(*slot.running)

    @torch.no_grad()
    def resume(self, features: Tensor, groups: int) -> Tensor:
        """Return float32 logits of `groups` stacked batches of features."""
        self.groups = groups
        return self.split._resumed_pass(features, self.plan, groups).float()

    def record(self, features: Tensor) -> None:
        """Take the statistics of the clean batch from its features."""
        self.mode = "record"
        try:
            self.resume(features, 1)
        finally:
            self.mode = "fixed"

    def normalise(self, index: int, x: Tensor) -> Tensor:
        """Run the batch norm number `index` in the mode of the pass that is under way."""
        slot = self.slots[index]
        if not slot.batchwise or self.mode == "fixed":
            return slot.fixed(x)
        return slot.recording(x) if self.mode == "record" else slot.grouped(x, self.groups)

    def _take_norms(self) -> list[Slot]:
        slots: list[Slot] = []
        for live, own in zip(self.live.network.modules(), self.network.modules()):
            if isinstance(live, _BatchNorm) and isinstance(own, _BatchNorm):
                if not is_plain(live) or (live.training and type(live).forward is not _BatchNorm.forward):
                    raise CannotTwin(f"{type(own).__name__} has its own forward")
                batchwise = self.live.fresh or uses_batch_statistics(live)
                slots.append(Slot(live, own, batchwise=batchwise))
                own.__dict__["forward"] = NormCall(self, len(slots) - 1)
        return slots

    def _cast(self, images: Tensor) -> None:
        kept = {id(t) for slot in self.slots for t in _own(slot.own)}
        head = _last_linear(self.network, images)
        if head is not None:
            kept |= {id(t) for t in _own(head)}
            head.register_forward_pre_hook(_to_float)
        for module in self.network.modules():
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if tensor is not None and tensor.is_floating_point() and id(tensor) not in kept:
                        table[name] = _recast(tensor, self.dtype)  # type: ignore[assignment]

    def _paired(self) -> list[tuple[Tensor, dict[str, Tensor], str]]:
        """The twin's tensors with where to find the live value (looked up anew at every refresh)."""
        out = []
        for live, own in zip(self.live.network.modules(), self.network.modules()):
            for field in ("_parameters", "_buffers"):
                for name, tensor in getattr(own, field).items():
                    if tensor is not None and not (isinstance(own, _BatchNorm) and field == "_buffers"):
                        out.append((tensor, getattr(live, field), name))
        return out


class NormCall:
    """The forward of a twin's batch norm."""

    def __init__(self, twin: Twin, index: int) -> None:
        self.twin, self.index = twin, index

    def __call__(self, x: Tensor) -> Tensor:
        return self.twin.normalise(self.index, x)


def _own(module: nn.Module) -> list[Tensor]:
    return [t for t in (*module._parameters.values(), *module._buffers.values()) if t is not None]


def _kind_of_copy(target: Tensor, live: Tensor) -> Any:
    """Copies of one kind go through one kernel: the same dtypes, and the same strides on both sides."""
    return target.dtype, live.dtype, target.stride() == live.stride()


def _recast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    layout = torch.channels_last if tensor.ndim == 4 else torch.preserve_format
    cast = tensor.detach().to(dtype, memory_format=layout, copy=True)
    return nn.Parameter(cast, requires_grad=False) if isinstance(tensor, nn.Parameter) else cast


def _to_float(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.float() if isinstance(a, Tensor) else a for a in args)


@torch.no_grad()
def _last_linear(network: nn.Module, images: Tensor) -> nn.Module | None:
    """The linear layer whose output is the logits, if there is one."""
    last: list[tuple[nn.Module, Any]] = []
    linears = [m for m in network.modules() if isinstance(m, nn.Linear)]
    handles = [m.register_forward_hook(lambda m, _a, out: last.append((m, out))) for m in linears]
    try:
        logits = logits_of(network(images[:2]))
    finally:
        for handle in handles:
            handle.remove()
    return last[-1][0] if last and last[-1][1] is logits else None
