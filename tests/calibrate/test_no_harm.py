"""On a small network without batch norms, trained on few images, SICL is better than the softmax."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sicl
from sicl.data import Dataset, load_dataset
from sicl.metrics import auroc, expected_calibration_error


def _pictures(data: Dataset, n: int) -> tuple[Tensor, Tensor]:
    pixels = torch.from_numpy(data.images[:n].copy()).permute(0, 3, 1, 2).float() / 255
    return F.avg_pool2d(pixels, 2), torch.from_numpy(data.labels[:n].copy())


def _stage(n_in: int, n_out: int) -> list[nn.Module]:
    # One group of all channels is a layer norm.
    return [nn.Conv2d(n_in, n_out, 3, 2, 1), nn.GroupNorm(1, n_out), nn.ReLU()]


def _trained() -> nn.Module:
    images, labels = _pictures(load_dataset("demo", split="val"), 400)
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        head = [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(192, 10)]
        network = nn.Sequential(*_stage(3, 24), *_stage(24, 48), nn.Conv2d(48, 48, 3, 1, 1), *head)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(200):
        chosen = torch.randint(len(images), (64,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(network(images[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return network.eval().requires_grad_(False)


def test_a_network_with_layer_norms_is_done_no_harm() -> None:
    """Ranking as the softmax's, within what 512 images can tell, and a quarter of its error at least is gone."""
    images, labels = _pictures(load_dataset("demo"), 512)
    trusted = sicl.SICL(variants=4).attach(_trained())
    outs = [trusted(part) for part in images.split(32)]
    right = torch.cat([out.labels for out in outs]) == labels
    confidence, softmax = (
        torch.cat(values)
        for values in ([out.confidence for out in outs], [out.signals["softmax"] for out in outs])
    )
    assert auroc(confidence, right) > auroc(softmax, right) - 0.03
    assert expected_calibration_error(confidence, right) < 0.75 * expected_calibration_error(softmax, right)
