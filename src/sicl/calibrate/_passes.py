"""Extra passes through the network that predicts: as it predicts, and without a trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sicl.engine.norms import protected_statistics
from sicl.engine.split import logits_of
from sicl.types import SourceData


@contextmanager
def as_it_predicts(network: nn.Module) -> Iterator[None]:
    """Normalise as the network stands (batch or running statistics), without gradients or writing a buffer."""
    with torch.no_grad(), protected_statistics(network):
        yield


def predicted_logits(network: nn.Module, images: Tensor) -> Tensor:
    """Return the float32 logits of images by the network as it predicts."""
    with as_it_predicts(network):
        return logits_of(network(images)).float()


def device_of(network: nn.Module) -> torch.device:
    """Return the device of the network's first parameter (the CPU if it has none)."""
    parameter = next(iter(network.parameters()), None)
    return torch.device("cpu") if parameter is None else parameter.device


def draw_source(source: SourceData, n: int, seed: int) -> SourceData:
    """Return `n` samples of `source`, drawn without replacement (all of them if it has no more)."""
    if len(source) <= n:
        return source
    chosen = torch.randperm(len(source), generator=torch.Generator().manual_seed(seed))[:n]
    return SourceData(
        source.images[chosen.to(source.images.device)], source.labels[chosen.to(source.labels.device)]
    )


def batches(images: Tensor, size: int, network: nn.Module) -> Iterator[Tensor]:
    """Yield nearly equal batches of at most `size` images, on the network's device and in its dtype.

    Nearly equal, because a small last batch would have poor batch statistics.
    """
    like = next(iter(network.parameters()), None)
    for part in images.tensor_split(-(-len(images) // size)):
        yield part if like is None else part.to(like.device, like.dtype)


def is_due(count: int, every: int) -> bool:
    """Say whether to refit at batch `count` (from 0): every `every` batches, more often at the start.

    Batches 0, 1, 2, 4, 8, ... below `every` are due too: early on, each doubles what there is to fit on.
    """
    return count % every == 0 or (count < every and count & (count - 1) == 0)
