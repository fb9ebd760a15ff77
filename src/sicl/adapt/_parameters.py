"""Choose what adapts: norm statistics, and the affine parameters of norm layers."""

from __future__ import annotations

from torch import nn

from sicl.errors import UnsupportedModelError
from sicl.models.norms import batch_norms, norm_layers


def use_batch_statistics(network: nn.Module) -> None:
    """Make every batch norm normalise with the batch at hand, for good, without touching its buffers."""
    for module in batch_norms(network):
        module.train()
        module.track_running_stats = False


def train_norm_affines(network: nn.Module, *, method: str) -> list[nn.Parameter]:
    """Turn gradients on for the scale and shift of every norm layer, and return them in order.

    Raises:
        UnsupportedModelError: there are none.
    """
    parameters = [
        parameter
        for _, module in norm_layers(network)
        for parameter in (module.weight, module.bias)
        if isinstance(parameter, nn.Parameter)
    ]
    if not parameters:
        raise UnsupportedModelError(
            f"`{method}` needs normalisation layers with affine parameters; {type(network).__name__} has none. "
            "Use `Source()` to calibrate without adapting."
        )
    for parameter in parameters:
        parameter.requires_grad_(True)
    return parameters
