"""ResNets for 32-pixel images: a 3x3 stride-1 stem, no max-pool, torchvision's parameter names."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from sicl.errors import require_positive
from sicl.models.preprocess import FromPixels, normalised
from sicl.models.vit import vit_small

CIFAR10_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR10_STD = (0.2470, 0.2435, 0.2616)
CIFAR100_MEAN = (0.5071, 0.4865, 0.4409)
CIFAR100_STD = (0.2673, 0.2564, 0.2762)

Norm = Callable[[int], nn.Module]
"""Makes the normalisation layer of so many channels."""


def group_norm(n_channels: int) -> nn.Module:
    """Return a group norm of eight groups (Wu and He, 2018), which does not look at other images."""
    return nn.GroupNorm(math.gcd(8, n_channels), n_channels)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a skip connection (He et al., 2016)."""

    expansion = 1

    def __init__(self, n_in: int, n_mid: int, stride: int, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(n_in, n_mid, 3, stride, 1, bias=False)
        self.bn1 = norm(n_mid)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(n_mid, n_mid, 3, 1, 1, bias=False)
        self.bn2 = norm(n_mid)
        self.downsample = _projection(n_in, n_mid, stride, norm)

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.relu(self.bn1(self.conv1(features)))
        out = self.bn2(self.conv2(out))
        skip = features if self.downsample is None else self.downsample(features)
        out = self.relu(out + skip)
        return out


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride), 1x1 convolutions and a skip connection: torchvision's "v1.5" block."""

    expansion = 4

    def __init__(self, n_in: int, n_mid: int, stride: int, norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        n_out = n_mid * self.expansion
        self.conv1 = nn.Conv2d(n_in, n_mid, 1, bias=False)
        self.bn1 = norm(n_mid)
        self.conv2 = nn.Conv2d(n_mid, n_mid, 3, stride, 1, bias=False)
        self.bn2 = norm(n_mid)
        self.conv3 = nn.Conv2d(n_mid, n_out, 1, bias=False)
        self.bn3 = norm(n_out)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _projection(n_in, n_out, stride, norm)

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.relu(self.bn1(self.conv1(features)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        skip = features if self.downsample is None else self.downsample(features)
        out = self.relu(out + skip)
        return out


def _projection(n_in: int, n_out: int, stride: int, norm: Norm) -> nn.Sequential | None:
    if stride == 1 and n_in == n_out:
        return None
    return nn.Sequential(nn.Conv2d(n_in, n_out, 1, stride, bias=False), norm(n_out))


class ResNet(FromPixels):
    """A residual network for small images in [0, 1]; normalisation is its first step.

    Args:
        block: `BasicBlock` or `Bottleneck`.
        depths: blocks in each of the four stages.
        width: channels of the first stage (64 in the papers); later stages double it.
        n_classes: size of the output.
        mean: per-channel mean taken from the images.
        std: per-channel standard deviation they are divided by.
        norm: makes the normalisation layers, which keep the names `bn1`, `bn2`, `bn3`.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: Sequence[int],
        *,
        width: int = 64,
        n_classes: int = 10,
        mean: Sequence[float] = CIFAR10_MEAN,
        std: Sequence[float] = CIFAR10_STD,
        norm: Norm = nn.BatchNorm2d,
    ) -> None:
        super().__init__(mean, std)
        require_positive(width=width, n_classes=n_classes)
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = norm(width)
        self.relu = nn.ReLU(inplace=True)
        out = block.expansion
        self.layer1 = _stage(block, width, width, depths[0], 1, norm)
        self.layer2 = _stage(block, width * out, 2 * width, depths[1], 2, norm)
        self.layer3 = _stage(block, 2 * width * out, 4 * width, depths[2], 2, norm)
        self.layer4 = _stage(block, 4 * width * out, 8 * width, depths[3], 2, norm)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(8 * width * out, n_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        out = self.relu(self.bn1(self.conv1(normalised(images, self.mean, self.std))))
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(out), 1))
        return logits


def _stage(
    block: type[BasicBlock] | type[Bottleneck], n_in: int, n_mid: int, depth: int, stride: int, norm: Norm
) -> nn.Sequential:
    blocks = [block(n_in, n_mid, stride, norm)]
    blocks += [block(n_mid * block.expansion, n_mid, 1, norm) for _ in range(depth - 1)]
    return nn.Sequential(*blocks)


# Untrained, with the CIFAR stem; each takes `width`, `n_classes`, `mean` and `std`.
resnet18 = partial(ResNet, BasicBlock, (2, 2, 2, 2))
resnet18_gn = partial(resnet18, norm=group_norm)
resnet50 = partial(ResNet, Bottleneck, (3, 4, 6, 3))
resnet101 = partial(ResNet, Bottleneck, (3, 4, 23, 3))

ARCHITECTURES: dict[str, Callable[..., nn.Module]] = {
    "resnet18": resnet18,
    "resnet18_gn": resnet18_gn,
    "resnet50": resnet50,
    "resnet101": resnet101,
    "vit_small": vit_small,
}
"""Untrained networks by name; each takes `width`, `n_classes`, `mean` and `std`."""
