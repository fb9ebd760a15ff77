"""What a network says of many augmented views of a batch, on average."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sicl.adapt._augment import strong_augmentation
from sicl.engine.norms import batch_norms, batch_statistics, can_group, statistics_of
from sicl.engine.split import logits_of

PIXELS = {"cuda": 2**21, "cpu": 2**16}
"""Pixels of views that go through the network at once: 32 views of 64 CIFAR images on a GPU; on a CPU, where more
at once are no faster, one (`python benchmarks/adapters.py --views`)."""


@torch.no_grad()
def mean_over_views(
    network: nn.Module, images: Tensor, n_views: int, generator: torch.Generator, at_once: int | None = None
) -> Tensor:
    """Return the mean logits of strongly augmented views, each normalised as if it came alone.

    Args:
        network: any classifier.
        images: the batch.
        n_views: how many.
        generator: on the host.
        at_once: views in one pass; None: as many as have `PIXELS` pixels.
    """
    norms = [layer for layer in batch_norms(network) if statistics_of(layer) == "batch"]
    limit = at_once or max(1, PIXELS.get(images.device.type, 2**16) // images[:, 0].numel())
    limit = limit if all(map(can_group, norms)) else 1
    total: Tensor | None = None
    for start in range(0, n_views, limit):
        n = min(limit, n_views - start)
        views = torch.cat([strong_augmentation(images, generator) for _ in range(n)])
        logits = _sum_over_views(network, views, n, norms)
        total = logits if total is None else total + logits
    assert total is not None
    return total / n_views


def _sum_over_views(network: nn.Module, views: Tensor, n: int, norms: Sequence[_BatchNorm]) -> Tensor:
    """Return the sum of the views' logits; if a GPU's memory is too small for all, half of them at a time."""
    size = len(views) // n
    try:
        with batch_statistics(network, groups=n, modules=norms):
            return logits_of(network(views)).float().view(n, size, -1).sum(dim=0)
    except torch.OutOfMemoryError:
        if n == 1:
            raise
    # Out of the handler: the error held what the first try had computed.
    half = n // 2
    first = _sum_over_views(network, views[: half * size], half, norms)
    return first + _sum_over_views(network, views[half * size :], n - half, norms)
