"""The ViT-Tiny source models of the plans beside this file; weights in timm's names lie in weights/."""

from __future__ import annotations

from pathlib import Path

import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from sicl.models.vit import VisionTransformer


class Enlarged(nn.Module):
    """A network that gets its images enlarged by bicubic interpolation.

    Args:
        network: a classifier of images in [0, 1].
        size: the side it was trained with.
    """

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network, self.size = network, size

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        large = F.interpolate(images, size=self.size, mode="bicubic", align_corners=False)
        logits: Tensor = self.network(large.clamp(0.0, 1.0))
        return logits


def cifar10() -> nn.Module:
    """Return the network fine-tuned on CIFAR-10 at 128 pixels."""
    return Enlarged(_loaded("cifar10-vit_tiny128", image_size=128, n_classes=10), 128)


def imagenet() -> nn.Module:
    """Return the network for ImageNet at 224 pixels."""
    return _loaded("imagenet-vit_tiny", image_size=224, n_classes=1000)


def _loaded(name: str, *, image_size: int, n_classes: int) -> nn.Module:
    half = (0.5, 0.5, 0.5)
    size = {"image_size": image_size, "patch": 16, "dim": 192, "depth": 12, "n_heads": 3}
    network = VisionTransformer(**size, n_classes=n_classes, mean=half, std=half)
    weights = load_file(Path("weights") / f"{name}.safetensors")
    network.load_state_dict({key: value.float() for key, value in weights.items()})
    return network.eval()
