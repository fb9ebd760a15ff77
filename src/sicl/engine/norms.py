"""Find normalisation layers, and say which statistics they normalise with while a block of code runs.

Statistics are one of three kinds: "running" (the averages that a layer keeps), "batch" (those of the batch at
hand) and "frozen" (those of an earlier, clean batch).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.overrides import TorchFunctionMode

from sicl.engine.kernels import norm as triton_norm
from sicl.errors import UnsupportedModelError

Statistics = Literal["running", "batch", "frozen"]
Recorded = Mapping[nn.Module, tuple[Tensor, Tensor]]
"""For each batch norm the (mean, biased variance) it normalised with."""

_BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
_EARLY = 3 / 4


def norm_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return (name, module) of every batch, layer, group or instance norm, in definition order."""
    kinds = (_BatchNorm, _InstanceNorm, nn.LayerNorm, nn.GroupNorm)
    return [(name, module) for name, module in model.named_modules() if isinstance(module, kinds)]


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return every batch norm of the model, in definition order."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def early_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the first three quarters of the batch norms.

    Their statistics depend on what images look like, those of the last ones on which classes there are.
    """
    norms = batch_norms(model)
    return norms[: round(_EARLY * len(norms))]


def statistics_of(module: _BatchNorm) -> Literal["running", "batch"]:
    """Say what the layer, as it stands, normalises with."""
    # As torch decides it: without buffers even evaluation uses the batch.
    batch = module.training or (module.running_mean is None and module.running_var is None)
    return "batch" if batch else "running"


def statistics_for(norm: Literal["batch", "frozen"]) -> Literal["frozen"] | None:
    """Return the statistics of variants under a `norm` option: frozen, or None for those of the network."""
    return "frozen" if norm == "frozen" else None


@contextmanager
def attributes_restored(modules: Sequence[nn.Module], *names: str) -> Iterator[None]:
    """Put back, on the way out, what instances have under these names, or its absence."""
    before = [(module, {n: module.__dict__[n] for n in names if n in module.__dict__}) for module in modules]
    try:
        yield
    finally:
        for module, own in before:
            for name in names:
                module.__dict__.pop(name, None)
            module.__dict__.update(own)


@contextmanager
def _restored(modules: list[_BatchNorm]) -> Iterator[None]:
    """Put back, on the way out, every field and buffer that a norm mode may have changed."""
    buffers = [{name: module._buffers.get(name) for name in _BUFFERS} for module in modules]
    # All that the modes below touch.
    with attributes_restored(modules, "training", "track_running_stats", "momentum", "forward"):
        try:
            yield
        finally:
            for module, own in zip(modules, buffers):
                # Buffers are put back as objects: nothing was written into the originals.
                module._buffers.update(own)


@contextmanager
def running_statistics(model: nn.Module) -> Iterator[None]:
    """Normalise with the running statistics; buffers are not updated."""
    modules = batch_norms(model)
    with _restored(modules):
        for module in modules:
            module.training = False
        yield


def protected_statistics(model: nn.Module) -> AbstractContextManager[None]:
    """Normalise as the network stands, but update no buffers."""
    # Only these would write to a buffer.
    modules = [m for m in batch_norms(model) if m.training and m.track_running_stats]
    return batch_statistics(model, modules=modules)


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
        UnsupportedModelError: (in the pass) a batch norm whose own forward does not call torch's `batch_norm`.
    """
    modules = batch_norms(model) if modules is None else list(modules)
    with _restored(modules):
        for module in modules:
            # Torch's own kernel where it can serve: it is faster, and gradients flow as usual.
            genuine = groups == 1 and (is_torchs(module) or module.training)
            if not genuine:
                module.__dict__["forward"] = partial(forward_with, module, partial(_grouped, module, groups))
            # Without tracking, a training-mode batch norm neither reads nor writes its buffers.
            module.training, module.track_running_stats = genuine, False
        yield


@contextmanager
def frozen_statistics(model: nn.Module, statistics: Recorded) -> Iterator[None]:
    """Normalise with given statistics, e.g. those that `record_statistics` saw; buffers are not updated."""
    modules = [module for module in batch_norms(model) if module in statistics]
    with _restored(modules):
        for module in modules:
            # The buffers are swapped, never written to: the layer's own stay as they are.
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
    # Filled when the block ends: before that nothing has been normalised.
    recorded: dict[nn.Module, tuple[Tensor, Tensor]] = {}
    counts: dict[nn.Module, int] = {}
    modules = [m for m in batch_norms(model) if statistics_of(m) == "batch"]

    def count(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        counts[module] = args[0].numel() // args[0].shape[1]

    with ExitStack() as stack:
        stack.enter_context(_restored(modules))
        for module in modules:
            fresh = _fresh_buffers(module)
            module._buffers.update(running_mean=fresh[0], running_var=fresh[1], num_batches_tracked=None)
            if is_torchs(module) or module.training:
                module.training, module.track_running_stats, module.momentum = True, True, 1.0
            else:
                # In training mode a subclass may do something else than it does as it stands.
                module.__dict__["forward"] = partial(forward_with, module, partial(_recording, module))
            # The kernel writes the unbiased variance; its count is needed to undo that.
            stack.enter_context(module.register_forward_pre_hook(count))
        yield recorded
        for module in modules:
            if module in counts:
                mean, unbiased = module._buffers["running_mean"], module._buffers["running_var"]
                assert mean is not None
                assert unbiased is not None
                n = counts[module]
                # Normalisation uses the biased variance.
                recorded[module] = (mean, unbiased * ((n - 1) / n))
    for module in batch_norms(model):
        mean, variance = module._buffers.get("running_mean"), module._buffers.get("running_var")
        if module not in recorded and mean is not None and variance is not None:
            recorded[module] = (mean, variance)


def _fresh_buffers(module: _BatchNorm) -> tuple[Tensor, Tensor]:
    like = module.weight if module.weight is not None else module._buffers.get("running_mean")
    # In the layer's own dtype and on its device, where it has a tensor to tell.
    zeros = torch.zeros(module.num_features) if like is None else torch.zeros_like(like)
    return zeros.detach(), torch.ones_like(zeros)


def is_torchs(module: _BatchNorm) -> bool:
    """Say whether the layer's forward is torch's own."""
    return type(module).forward is _BatchNorm.forward and "forward" not in module.__dict__


class _Replaced(TorchFunctionMode):
    """Calls of `batch_norm` go to `norm` instead, while the mode is on."""

    def __init__(self, norm: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.norm, self.calls = norm, 0

    def __torch_function__(
        self, function: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # All else the subclass does, it does itself.
        if function is not F.batch_norm:
            return function(*args, **(kwargs or {}))
        self.calls += 1
        return self.norm(args[0] if args else (kwargs or {})["input"])


def forward_with(module: _BatchNorm, norm: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Run a batch norm in evaluation mode with `norm` in place of its normalisation.

    What a subclass does besides (the activation of timm's `BatchNormAct2d`) is done as it does it.

    Raises:
        UnsupportedModelError: the forward does not call torch's `batch_norm` exactly once.
    """
    if type(module).forward is _BatchNorm.forward:
        return norm(x)
    with _Replaced(norm) as replaced:
        out: Tensor = type(module).forward(module, x)
    # Not once: the layer normalises in another way, and replacing would change what it computes.
    if replaced.calls != 1:
        raise UnsupportedModelError(
            f"{type(module).__name__} has its own forward, which does not call `torch.nn.functional.batch_norm` "
            'once, so variants cannot share a batch; use `norm="frozen"`.'
        )
    return out


@torch.no_grad()
def can_group(module: _BatchNorm) -> bool:
    """Say whether stacked batches can be normalised apart: `forward_with` gives what the layer gives itself."""
    if is_torchs(module) or "forward" in module.__dict__:
        return is_torchs(module)
    x = _example(module)
    try:
        with batch_statistics(module, modules=[module]):
            # Tried out on random values, because a subclass may do anything in its forward.
            expected = module(x)
        with batch_statistics(module, groups=2, modules=[module]):
            found = module(torch.cat([x, x]))
    except Exception:  # whatever it does with this input, it means: not this layer
        return False
    return torch.allclose(found, torch.cat([expected, expected]), rtol=1e-3, atol=1e-3)


@torch.no_grad()
def only_normalises(module: _BatchNorm) -> bool:
    """Say whether the layer in evaluation mode is torch's batch norm and nothing else, whatever it does in training."""
    x = _example(module)
    return is_torchs(module) or (can_group(module) and torch.equal(forward_with(module, lambda y: y, x), x))


def _example(module: _BatchNorm) -> Tensor:
    """A small batch for the layer, with values of both signs."""
    like = next((t for t in (module.weight, module.running_mean) if t is not None), torch.zeros(()))
    # Layers check the number of dimensions of their input.
    n_dims = 0 if isinstance(module, nn.BatchNorm1d) else 3 if isinstance(module, nn.BatchNorm3d) else 2
    size = (6, module.num_features, *[2] * n_dims)
    return torch.randn(size, generator=torch.Generator().manual_seed(0)).to(like)


def _grouped(module: _BatchNorm, groups: int, x: Tensor) -> Tensor:
    return grouped_batch_norm(x, groups, module.weight, module.bias, module.eps)


def _recording(module: _BatchNorm, x: Tensor) -> Tensor:
    """Normalise with the statistics of `x`, and leave them in the layer's buffers."""
    mean, variance = module._buffers["running_mean"], module._buffers["running_var"]
    return F.batch_norm(x, mean, variance, module.weight, module.bias, True, 1.0, module.eps)


def grouped_batch_norm(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Normalise each of `groups` equal parts of the batch with its own channel statistics."""
    if triton_norm.usable(x):
        return triton_norm.grouped_norm(x, groups, weight, bias, eps)
    if x.device.type == "cpu" and (groups == 1 or x.numel() > groups << 14):
        # The native kernel beats reductions over a 5-D view by far, even with the copy at the end.
        parts = (F.batch_norm(part, None, None, weight, bias, True, 0.0, eps) for part in x.chunk(groups))
        if groups == 1:
            return next(parts)
        out = torch.empty_like(x)
        # One at a time: all of them beside their copy would be one large tensor more.
        for part, room in zip(parts, out.chunk(groups)):
            room.copy_(part)
        return out
    # One reduction over all groups: a loop would launch a kernel for each of them.
    stacked = x.view(groups, -1, *x.shape[1:])
    mean, variance = _moments(stacked, (1, *range(3, stacked.ndim)))
    shape = (1, 1, -1, *([1] * (stacked.ndim - 3)))
    # Scale and shift first, on C values; the large tensor is then read once.
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
    # Sums in float32: 16 bits would lose all but the first digits of a long one.
    count = x.numel() // (x.shape[0] * x.shape[2])
    mean = x.mean(dims, keepdim=True, dtype=torch.float32)
    norm = torch.linalg.vector_norm(x, 2, dims, keepdim=True, dtype=torch.float32)
    return mean, (norm.square() / count - mean.square()).clamp_min(0.0)
