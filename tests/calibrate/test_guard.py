"""The collapse guard: silent while adaptation is healthy; when it is not, the network loses its say."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import sicl
from sicl.calibrate.sicl.collapse import collapse, effective_classes


def _network() -> nn.Module:
    """A classifier that names the colour channel which stands out, from batch-normalised channel means."""
    head = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        head.weight.copy_(2 * torch.eye(3))
    convolution = nn.Conv2d(3, 3, 1, bias=False)
    with torch.no_grad():
        convolution.weight.copy_(torch.eye(3).view(3, 3, 1, 1))
    layers = [convolution, nn.BatchNorm2d(3), nn.Identity(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head]
    return nn.Sequential(*layers)


def _images(seed: int) -> torch.Tensor:
    """Noise in which one colour is brighter, each colour as often."""
    images = torch.rand(33, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) * 0.5
    images[torch.arange(33), torch.arange(33) % 3] += 0.4
    return images


def test_effective_classes_counts_the_classes_in_use() -> None:
    """Four labels used equally are four classes, one label is one."""
    assert float(effective_classes(torch.tensor([0, 1, 2, 3] * 5), 10)) == torch.tensor(4.0)
    assert float(effective_classes(torch.zeros(7, dtype=torch.long), 10)) == 1.0


def test_collapse_is_zero_for_equal_variety_and_one_for_a_single_class() -> None:
    """The guard sleeps while both networks use the same classes and is fully awake at one class of eight."""
    many = torch.arange(8).repeat(8)
    assert float(collapse(many, many, 8)) == 0.0
    assert float(collapse(torch.zeros_like(many), many, 8)) == 1.0


def test_a_stream_of_one_class_is_no_collapse() -> None:
    """Where the attached network sees one class too, few predicted classes are the stream's doing."""
    one = torch.full((64,), 3)
    assert float(collapse(one, one, 10)) == 0.0


def test_an_unadapted_network_is_never_compared_with_itself() -> None:
    """Without adaptation nothing moved, so the guard makes no pass and changes nothing."""
    guarded = sicl.SICL().attach(_network())(_images(0))
    plain = sicl.SICL(relaxation="none").attach(_network())(_images(0))
    assert float(guarded.signals["collapse"]) == 0.0
    assert torch.equal(guarded.confidence, plain.confidence)


def test_a_collapsed_networks_say_goes_to_the_anchor() -> None:
    """Once the classifier's input is forced to be constant the anchor speaks, and is less sure than the softmax."""
    adapted = sicl.Tent().attach(_network())
    trusted = sicl.SICL().attach(adapted)
    trusted(_images(1))
    with torch.no_grad():
        norm = adapted.network[1]
        norm.weight.zero_()
        norm.bias.copy_(torch.tensor([5.0, 0, 0]))
    for seed in range(2, 10):
        out = trusted(_images(seed))
    assert len(out.labels.unique()) == 1
    assert float(out.signals["collapse"]) == 1.0
    assert float(out.signals["say_network"]) == 0.0
    assert float(out.signals["say_anchor"]) == 1.0
    # The colours are a question of style: what the anchor says of them weighs by its own agreement.
    said = torch.stack([out.signals[f"anchor_{name}"] for name in ("mirror", "crop", "style")])
    assert bool((out.confidence <= said.amax(dim=0) + 1e-6).all())
    assert bool((out.confidence >= said.amin(dim=0) - 1e-6).all())
    assert float(out.confidence.mean()) < float(out.signals["softmax"].mean())


def test_looking_at_the_attached_network_leaves_the_adapted_one_as_it_was() -> None:
    """Parameters and buffers are the same tensors with the same values afterwards."""
    adapted = sicl.Tent(predict="after").attach(_network())
    trusted = sicl.SICL().attach(adapted)
    trusted(_images(1))
    before = {name: value.clone() for name, value in adapted.network.state_dict().items()}
    plain = sicl.Tent(predict="after").attach(_network())
    plain(_images(1))
    for name, value in plain.network.state_dict().items():
        assert torch.equal(before[name], value), name


def test_a_learner_counts_a_third_beside_the_anchor() -> None:
    """A network that adapts to its own predictions becomes too sure of them; with answers alike, 1 to 3."""
    trusted = sicl.SICL(members=("mirror",)).attach(sicl.Tent(lr=1e-6).attach(_network()))
    signals = trusted(_images(1)).signals
    assert float(signals["say_anchor"] / signals["say_network"]) == pytest.approx(3.0)
