"""Small networks, specs and data that the tests of the calibration room share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from sicl import SICL, McDropout, PseudoCal, Softmax, SourceData, TemperatureScaling, TransCal
from sicl.calibrate import Calibrator
from sicl.models.vit import VisionTransformer

SPECS: dict[str, Calibrator] = {
    "softmax": Softmax(),
    "temperature_scaling": TemperatureScaling(),
    "temperature_scaling, refitted": TemperatureScaling(every=1),
    "mc_dropout": McDropout(passes=3),
    "mc_dropout, frozen": McDropout(passes=3, norm="frozen", max_batch=1),
    "transcal": TransCal(every=2, window=16),
    "pseudocal": PseudoCal(window=16),
    "sicl": SICL(variants=2, content_variants=2),
    "sicl, as printed": SICL.paper(variants=2, content_variants=2),
}
"""Every calibrator, set to be cheap."""


class SmallNet(nn.Module):
    """Two stages with batch norms and a linear head, for 8-pixel images."""

    def __init__(self, n_classes: int = 4) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.layer1 = _stage(6, 6, 1)
        self.layer2 = _stage(6, 8, 2)
        self.fc = nn.Linear(8, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.layer2(self.layer1(self.stem(images * 4 - 2)))
        logits: Tensor = self.fc(features.mean(dim=(2, 3)))
        return logits


def _stage(n_in: int, n_out: int, stride: int) -> nn.Sequential:
    conv = nn.Conv2d(n_in, n_out, 3, stride, padding=1)
    return nn.Sequential(conv, nn.BatchNorm2d(n_out), nn.ReLU(), nn.Conv2d(n_out, n_out, 1))


class WithLogits(nn.Module):
    """Returns an object with `.logits`, as Hugging Face models do."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, images: Tensor) -> Any:
        return SimpleNamespace(logits=self.backbone(images))


def small_net(n_classes: int = 4) -> nn.Module:
    """Return an untrained network with opinions: fitting statistics, and logits a few units wide."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = SmallNet(n_classes)
    with torch.no_grad():
        for _ in range(20):
            network(images(64, seed=9))
        spread = network.eval()(images(64, seed=9))
        network.fc.weight.mul_(2 / spread.std(dim=0, keepdim=True).T)
        network.fc.bias.copy_(network.fc.bias - network(images(64, seed=9)).mean(dim=0))
    return network


def small_vit() -> nn.Module:
    """Return an untrained transformer for 8-pixel images."""
    half = (0.5,) * 3
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return VisionTransformer(
            image_size=8, patch=4, dim=12, depth=6, n_heads=2, n_classes=4, mean=half, std=half
        ).eval()


def images(n: int = 12, *, seed: int = 1) -> Tensor:
    """Return n random RGB images whose brightness and contrast differ."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.rand(n, 3, 8, 8, generator=generator)
    scale, shift = torch.rand(2, n, 3, 1, 1, generator=generator)
    return (pixels * scale + shift * (1 - scale)).clamp(0, 1)


@torch.no_grad()
def source_data(network: nn.Module, n: int = 40) -> SourceData:
    """Return source data on which the network is right about three times in four."""
    pixels = images(n, seed=5)
    out = network(pixels)
    labels = (out if isinstance(out, Tensor) else out.logits).argmax(dim=1)
    labels[::4] = (labels[::4] + 1) % 4
    return SourceData(pixels, labels)


def source_for(name: str, network: nn.Module) -> SourceData | None:
    """Return source data for the specs that cannot do without; SICL would fit a map on them."""
    needs = isinstance(SPECS[name], TemperatureScaling | TransCal)
    return source_data(network) if needs else None
