"""Choose what adapts: norm statistics, and the affine parameters of norm layers."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import nn

from sicl.engine.cut import find_stages
from sicl.engine.norms import batch_norms, norm_layers
from sicl.errors import UnsupportedModelError

Layers = Literal["all", "not_last_stage"]


def use_batch_statistics(network: nn.Module) -> None:
    """Make every batch norm normalise with the batch at hand, for good, without touching its buffers."""
    for module in batch_norms(network):
        module.train()
        module.track_running_stats = False


@contextmanager
def training(layers: Sequence[nn.Module]) -> Iterator[None]:
    """Put these layers, and no other, in training mode while the block runs."""
    try:
        for layer in layers:
            layer.training = True
        yield
    finally:
        for layer in layers:
            layer.training = False


def train_norm_affines(network: nn.Module, *, method: str, layers: Layers = "all") -> list[nn.Parameter]:
    """Turn gradients on for the scale and shift of norm layers, and return them in order.

    Args:
        network: the private copy.
        method: the name to put into the error.
        layers: "all", or "not_last_stage": without the layers that `last_stage_norms` names.

    Raises:
        UnsupportedModelError: there are none.
    """
    in_float32(network, method=method)
    skipped = last_stage_norms(network) if layers == "not_last_stage" else frozenset()
    parameters = [
        parameter
        for name, module in norm_layers(network)
        if name not in skipped
        for parameter in (module.weight, module.bias)
        if isinstance(parameter, nn.Parameter)
    ]
    _turn_on(parameters, network, f"`{method}` needs normalisation layers with affine parameters")
    return parameters


def train_weights(network: nn.Module, *, method: str) -> dict[str, nn.Parameter]:
    """Turn gradients on for every parameter called weight or bias, and return them by name.

    Raises:
        UnsupportedModelError: there are none.
    """
    learned = {n: p for n, p in network.named_parameters() if n.rpartition(".")[2] in ("weight", "bias")}
    _turn_on(learned.values(), network, f"`{method}` needs layers with weights")
    return learned


def _turn_on(parameters: Collection[nn.Parameter], network: nn.Module, need: str) -> None:
    if not parameters:
        raise UnsupportedModelError(
            f"{need}; {type(network).__name__} has none. Use `Source()` to calibrate without adapting."
        )
    for parameter in parameters:
        parameter.requires_grad_(True)


def in_float32(network: nn.Module, *, method: str) -> None:
    """Turn a private copy in half precision into float32: steps of 1e-3 vanish, or become NaN, in 16 bits."""
    low = {p.dtype for p in network.parameters()} & {torch.float16, torch.bfloat16}
    if low:
        network.float()
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in low))
        warnings.warn(
            f"`{method}` learns, for which {names} parameters are too coarse: its private copy is kept in "
            "float32; run it under `torch.autocast` for 16-bit speed.",
            stacklevel=2,
        )


def last_stage_norms(network: nn.Module) -> frozenset[str]:
    """Return the names of the norm layers in the last quarter of the stages, and after it.

    That is layer4 of a ResNet; blocks 9-11 and the final norm of a 12-block transformer. A network of one
    stage has no last one: nothing is named.
    """
    stages = find_stages(network)
    kept = stages[: len(stages) - max(1, len(stages) // 4)]
    if not kept:
        return frozenset()
    names = [name for name, _ in network.named_modules()]
    inside = [i for i, name in enumerate(names) if name == kept[-1] or name.startswith(f"{kept[-1]}.")]
    late = set(names[inside[-1] + 1 :])
    return frozenset(name for name, _ in norm_layers(network) if name in late)
