"""What an anchor whose early norms follow the batch must not be taken for: collapse, or a judge of single images."""

from __future__ import annotations

import pytest
import torch
from calibrate_networks import images, small_net
from torch import nn

import sicl
from sicl.adapt import Method
from sicl.corruptions import corrupt
from sicl.data import load_dataset


def _one_value_a_channel() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = [nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 8)]
        layers = [*body, nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6, 4)]
        return nn.Sequential(*layers).eval()


@pytest.mark.parametrize("witnesses", [("network", "anchor"), ("network",)])
def test_single_images_are_not_looked_at_by_an_anchor_that_needs_a_batch(witnesses: tuple[str, ...]) -> None:
    """SoTTA predicts single images by running statistics, and does so beside SICL too."""
    spec = sicl.SICL(variants=2, witnesses=witnesses)
    trusted = spec.attach(sicl.Sotta(threshold=0.2).attach(_one_value_a_channel()))
    for image in images(20).split(1):
        assert bool(trusted(image).confidence.isfinite().all())


@pytest.mark.parametrize("method", [sicl.Source(), sicl.Rotta()], ids=["source", "rotta"])
def test_where_batches_stand_by_themselves_a_small_one_is_put_to_the_network_alone(method: Method) -> None:
    """By the statistics of one image an anchor says nothing, and there is no company for it."""
    trusted = sicl.SICL(variants=2, say="equal").attach(method.attach(_one_value_a_channel()))
    assert "anchor_mirror" not in trusted(images(1)).signals
    trusted = sicl.SICL(variants=2, say="equal").attach(method.attach(small_net()))
    assert "anchor_mirror" not in trusted(images(8)).signals
    assert "anchor_mirror" in trusted(images(16)).signals


@pytest.mark.parametrize(
    "method", [sicl.Tent(lr=1e-9), sicl.Sotta(lr=1e-9, momentum=1e-6)], ids=["tent", "sotta"]
)
@pytest.mark.parametrize("corruption", ["speckle_noise", "contrast"])
def test_a_network_that_has_not_moved_has_not_collapsed(method: Method, corruption: str) -> None:
    """Statistics that do not fit are no collapse."""
    pixels = corrupt(
        torch.from_numpy(load_dataset("demo").images[:128].copy()), corruption, severity=5, seed=0
    )
    trusted = sicl.SICL().attach(method.attach(sicl.load_model("demo")))
    for part in (pixels.permute(0, 3, 1, 2).float() / 255).split(64):
        signals = trusted(part).signals
    assert float(signals["collapse"]) < 0.05
