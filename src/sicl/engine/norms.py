"""Find normalisation layers, and say which statistics they normalise with while a block of code runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from sicl.engine.kernels import norm as triton_norm
from sicl.errors import UnsupportedModelError

NormMode = Literal["running", "batch", "frozen"]
Statistics = Mapping[nn.Module, tuple[Tensor, Tensor]]
"""For each batch norm the (mean, biased variance) it normalised with."""

_FIELDS = ("training", "track_running_stats", "momentum")
_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def norm_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return (name, module) of every batch, layer, group or instance norm, in definition order."""
    kinds = (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm)
    return [(name, module) for name, module in model.named_modules() if isinstance(module, kinds)]


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return every batch norm of the model, in definition order."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def uses_batch_statistics(module: _BatchNorm) -> bool:
    """Say whether the layer, as it stands, normalises with the statistics of the batch it is given."""
    return module.training or (module.running_mean is None and module.running_var is None)


@contextmanager
def _restored(modules: list[_BatchNorm]) -> Iterator[None]:
    """Put back, on the way out, every field and buffer that a norm mode may have changed."""
    before = [
        ({f: getattr(m, f) for f in _FIELDS}, {b: m._buffers.get(b) for b in _BUFFERS}) for m in modules
    ]
    try:
        yield
    finally:
        for module, (fields, buffers) in zip(modules, before):
            for name, value in fields.items():
                setattr(module, name, value)
            # Buffers are put back as objects: nothing was written into the originals.
            module._buffers.update(buffers)


@contextmanager
def running_statistics(model: nn.Module) -> Iterator[None]:
    """Normalise with the running statistics; buffers are not updated."""
    modules = batch_norms(model)
    with _restored(modules):
        for module in modules:
            module.training = False
        yield


@contextmanager
def protected_statistics(model: nn.Module) -> Iterator[None]:
    """Normalise as the network stands, but update no buffers."""
    modules = [m for m in batch_norms(model) if m.training and m.track_running_stats]
    with batch_statistics(model, modules=modules):
        yield


@contextmanager
def batch_statistics(
    model: nn.Module, *, groups: int = 1, modules: Sequence[_BatchNorm] | None = None
) -> Iterator[None]:
    """Normalise with the statistics of the batch at hand; buffers are not updated.

    Args:
        model: the network.
        groups: the batch is this many equal groups stacked, each normalised as if it came alone.
        modules: only these batch norms; all of them if None.

    Raises:
        UnsupportedModelError: several groups, and a batch norm whose forward is not torch's.
    """
    modules = batch_norms(model) if modules is None else list(modules)
    with ExitStack() as stack:
        stack.enter_context(_restored(modules))
        for module in modules:
            # Without tracking, a training-mode batch norm neither reads nor writes its buffers.
            module.training, module.track_running_stats = True, False
        if groups > 1:
            stack.enter_context(_grouped(modules, groups))
        yield


@contextmanager
def frozen_statistics(model: nn.Module, statistics: Statistics) -> Iterator[None]:
    """Normalise with given statistics, e.g. those that `record_statistics` saw; buffers are not updated."""
    modules = [module for module in batch_norms(model) if module in statistics]
    with _restored(modules):
        for module in modules:
            mean, variance = statistics[module]
            module._buffers.update(running_mean=mean, running_var=variance)
            module.training = False
        yield


@contextmanager
def record_statistics(model: nn.Module) -> Iterator[dict[nn.Module, tuple[Tensor, Tensor]]]:
    """Yield a dict that holds, after the forward pass made inside, what each batch norm normalised with.

    The layers normalise as they would have anyway. A layer that uses batch statistics is given fresh
    buffers and momentum 1, so the kernel itself writes the statistics it computed: no second reduction.
    """
    recorded: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    counts: dict[nn.Module, int] = {}
    modules = [m for m in batch_norms(model) if uses_batch_statistics(m)]
    with ExitStack() as stack:
        stack.enter_context(_restored(modules))
        for module in modules:
            fresh = _fresh_buffers(module)
            module._buffers.update(running_mean=fresh[0], running_var=fresh[1], num_batches_tracked=None)
            module.training, module.track_running_stats, module.momentum = True, True, 1.0
            stack.callback(module.register_forward_pre_hook(_count_into(counts)).remove)
        yield recorded
        for module in modules:
            if module in counts:
                mean, unbiased = module._buffers["running_mean"], module._buffers["running_var"]
                assert mean is not None
                assert unbiased is not None
                n = counts[module]
                recorded[module] = (mean, unbiased * ((n - 1) / n))
    for module in batch_norms(model):
        mean, variance = module._buffers.get("running_mean"), module._buffers.get("running_var")
        if module not in recorded and mean is not None and variance is not None:
            recorded[module] = (mean, variance)


def _fresh_buffers(module: _BatchNorm) -> tuple[Tensor, Tensor]:
    like = module.weight if module.weight is not None else module._buffers.get("running_mean")
    zeros = torch.zeros(module.num_features) if like is None else torch.zeros_like(like)
    return zeros.detach(), torch.ones_like(zeros)


def _count_into(counts: dict[nn.Module, int]) -> Any:
    def hook(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        counts[module] = args[0].numel() // args[0].shape[1]

    return hook


def is_plain(module: _BatchNorm) -> bool:
    """Say whether the layer is torch's, or one that is in evaluation mode (`plain_in_eval`)."""
    return type(module).forward is _BatchNorm.forward or getattr(type(module), "plain_in_eval", False)


def can_group(modules: Sequence[_BatchNorm]) -> bool:
    """Say whether several batches can be stacked and still be normalised apart (torch's own forward only)."""
    return all(type(m).forward is _BatchNorm.forward and "forward" not in m.__dict__ for m in modules)


@contextmanager
def fresh_statistics(model: nn.Module) -> Iterator[None]:
    """Let every batch norm, also one that uses running statistics, normalise with those of the batch at hand."""
    modules = batch_norms(model)
    own = [m for m in modules if type(m).forward is not _BatchNorm.forward and is_plain(m)]
    with batch_statistics(model, modules=modules):
        try:
            for module in own:
                module.__dict__["forward"] = _GroupedForward(module, 1)
            yield
        finally:
            for module in own:
                module.__dict__.pop("forward", None)


@contextmanager
def _grouped(modules: list[_BatchNorm], groups: int) -> Iterator[None]:
    for module in modules:
        if not can_group([module]):
            raise UnsupportedModelError(
                f"{type(module).__name__} has its own forward, so several variants cannot share a batch in "
                'batch-statistics mode; use `norm="frozen"`.'
            )
    try:
        for module in modules:
            module.__dict__["forward"] = _GroupedForward(module, groups)
        yield
    finally:
        for module in modules:
            module.__dict__.pop("forward", None)


class _GroupedForward:
    """The forward of a batch norm whose input is `groups` batches stacked along dimension 0."""

    def __init__(self, module: _BatchNorm, groups: int) -> None:
        self.module, self.groups = module, groups

    def __call__(self, x: Tensor) -> Tensor:
        return grouped_batch_norm(x, self.groups, self.module.weight, self.module.bias, self.module.eps)


def grouped_batch_norm(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalise each of `groups` equal parts of the batch with its own channel statistics."""
    if triton_norm.usable(x):
        return triton_norm.grouped_norm(x, groups, weight, bias, eps)
    if x.device.type == "cpu" and (groups == 1 or x.numel() > groups << 14):
        # The native kernel beats reductions over a 5-D view by far, even with the copy at the end.
        norm = torch.nn.functional.batch_norm
        parts = [norm(part, None, None, weight, bias, True, 0.0, eps) for part in x.chunk(groups)]
        return parts[0] if groups == 1 else torch.cat(parts)
    stacked = x.view(groups, -1, *x.shape[1:])
    mean, variance = _moments(stacked, (1, *range(3, stacked.ndim)))
    shape = (1, 1, -1, *([1] * (stacked.ndim - 3)))
    scale = torch.rsqrt(variance + eps)
    if weight is not None:
        scale = scale * weight.view(shape)
    shift = -mean * scale if bias is None else bias.view(shape) - mean * scale
    return torch.addcmul(shift.to(x.dtype), stacked, scale.to(x.dtype)).flatten(0, 1)


def _moments(x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Mean and biased variance, in float32 at least, without a float32 copy of a 16-bit tensor."""
    if x.dtype not in (torch.bfloat16, torch.float16):
        variance, mean = torch.var_mean(x, dim=dims, correction=0, keepdim=True)
        return mean, variance
    count = x.numel() // (x.shape[0] * x.shape[2])
    mean = x.mean(dims, keepdim=True, dtype=torch.float32)
    norm = torch.linalg.vector_norm(x, 2, dims, keepdim=True, dtype=torch.float32)
    return mean, (norm.square() / count - mean.square()).clamp_min(0.0)
