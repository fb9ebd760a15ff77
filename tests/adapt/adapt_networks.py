"""Small networks and specs that the tests of the adaptation room share."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from sicl.adapt import (
    BatchNorm,
    Come,
    Cotta,
    Deyo,
    Eata,
    Lame,
    Method,
    Roid,
    Rotta,
    Sar,
    Sotta,
    Source,
    Tent,
)
from sicl.models.cifar import BasicBlock, ResNet
from sicl.models.vit import VisionTransformer
from sicl.types import SourceData

SPECS: dict[str, Method] = {
    "source": Source(),
    "batchnorm": BatchNorm(),
    "tent": Tent(lr=0.01),
    "eata": Eata(lr=0.05, margin=2.0, similarity=1.0, fisher_samples=16, fisher_batch=8),
    "sar": Sar(lr=0.05, margin=2.0, recovery=0.0),
    "rotta": Rotta(lr=0.01, nu=0.5, capacity=12, update_every=8),
    "sotta": Sotta(lr=0.01, threshold=0.0, capacity=12, update_every=8),
    "come": Come(lr=0.05),
    "deyo": Deyo(lr=0.05, margin=2.0, threshold=-1.0),
    "cotta": Cotta(lr=0.01, momentum=0.5, views=3, threshold=1.0),
    "roid": Roid(lr=0.05),
    "lame": Lame(),
}
"""Every method, set so that an untrained network's samples are used and each batch of eight moves something."""


class TinyNetwork(nn.Module):
    """One batch norm, a spatial mean and a fixed linear map: small enough to differentiate by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(2)
        self.head = nn.Linear(2, 3)
        with torch.no_grad():
            self.norm.weight.copy_(torch.tensor([1.5, 0.5]))
            self.norm.bias.copy_(torch.tensor([0.1, -0.2]))
            self.norm.running_mean.copy_(torch.tensor([0.3, 0.6]))
            self.norm.running_var.copy_(torch.tensor([0.05, 0.2]))
            self.head.weight.copy_(torch.tensor([[2.0, -1.0], [-1.0, 3.0], [-2.0, -2.0]]))
            self.head.bias.copy_(torch.tensor([0.2, 0.0, -0.1]))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(images).mean(dim=(2, 3)))
        return logits


def tiny_images(n: int = 4, seed: int = 3) -> Tensor:
    """Return n images of 2 x 2 x 2 for `TinyNetwork`."""
    return torch.rand(n, 2, 2, 2, generator=torch.Generator().manual_seed(seed))


@functools.cache
def _made(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = make()
        with torch.no_grad():
            network(random_images(32, seed=9))
    return network.eval()


def _resnet() -> nn.Module:
    return ResNet(BasicBlock, (1, 1, 1, 1), width=4)


def _vit() -> nn.Module:
    size = {"image_size": 16, "patch": 8, "dim": 12, "depth": 12, "n_heads": 2, "n_classes": 10}
    return VisionTransformer(**size, mean=(0.5,) * 3, std=(0.3,) * 3)


def small_resnet() -> nn.Module:
    """Return an untrained ResNet of width 4, one block a stage, with statistics that fit its input."""
    return copy.deepcopy(_made(_resnet))


def small_vit() -> nn.Module:
    """Return an untrained transformer of twelve narrow blocks for 16-pixel images."""
    return copy.deepcopy(_made(_vit))


def random_images(n: int = 8, *, seed: int = 1, size: int = 16) -> Tensor:
    """Return n random RGB images."""
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


def source_data() -> SourceData:
    """Return a little source data."""
    return SourceData(random_images(16, seed=5), torch.arange(16) % 10)
