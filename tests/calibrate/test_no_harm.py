"""On networks and methods that were not tuned for, SICL is better than the softmax."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sicl
from sicl.adapt import METHODS, Method
from sicl.data import Dataset, load_dataset
from sicl.metrics import auroc, expected_calibration_error
from sicl.streams import Benign


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


@pytest.mark.parametrize("method", [sicl.Lame(), sicl.Roid()])
def test_the_claim_of_a_method_is_not_taken_for_the_networks_word(method: Method) -> None:
    """LAME is sure of what it makes of a batch, and mostly wrong under noise; the network itself knows better."""
    trusted = sicl.SICL(engine="twin").attach(method.attach(sicl.load_model("demo")))
    stream = Benign(corruption="speckle_noise", severity=5, n=128).open(load_dataset("demo"))
    outs = [(trusted(batch.images), batch.labels) for batch in stream]
    right = torch.cat([out.labels == labels for out, labels in outs])
    confidence = torch.cat([out.confidence for out, _ in outs])
    assert expected_calibration_error(confidence, right) < 0.2


def test_methods_that_adjust_logits_say_so() -> None:
    """Those that replace what is said of a batch, and no others."""
    model = sicl.load_model("demo")
    adjusting = {name for name, spec in METHODS.items() if name != "eata" and spec().attach(model).adjusts}
    assert adjusting == {"cotta", "lame", "roid"}
