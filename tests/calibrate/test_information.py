"""How many classes witnesses tell apart decides whose word counts: the batch's statistics', or the anchor's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import sicl
from sicl.calibrate.sicl.company import effective_classes
from sicl.calibrate.sicl.information import EVERY, POWER, WINDOW, Information, information


def _network() -> nn.Module:
    """A classifier that names the colour channel which stands out, from batch-normalised channel means."""
    head = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        head.weight.copy_(4 * torch.eye(3))
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


def _logits(classes: int, sharpness: float = 20.0, n: int = 64) -> torch.Tensor:
    """Predictions of so many classes in turn, out of eight."""
    return sharpness * torch.nn.functional.one_hot(torch.arange(n) % classes, 8).float()


def _compared(mine: torch.Tensor, theirs: torch.Tensor) -> float:
    """How many times the network's classes another witness tells apart."""
    compared = Information()
    compared.observe(mine, lambda: {"batch": theirs})
    return float(compared.ratio("batch", mine))


def test_effective_classes_counts_the_classes_in_use() -> None:
    """Four labels used equally are four classes, one label is one."""
    assert float(effective_classes(torch.tensor([0, 1, 2, 3] * 5))) == torch.tensor(4.0)
    assert float(effective_classes(torch.zeros(7, dtype=torch.long))) == 1.0


def test_information_is_the_mutual_information_of_image_and_class() -> None:
    """log 4 for four classes told apart surely, 0 for one class, for blurred predictions and for a single image."""
    four = information(_logits(4).softmax(dim=1))
    assert float(four) == pytest.approx(torch.tensor(4.0).log().item(), abs=1e-4)
    for nothing in (_logits(1), torch.zeros(64, 8), _logits(4)[:1]):
        assert float(information(nothing.softmax(dim=1))) == pytest.approx(0.0, abs=1e-6)


def test_the_witness_that_tells_more_classes_apart_is_told_from_the_other() -> None:
    """Varied beside narrow predictions, and sharp beside blurred ones; alike if both are alike."""
    assert _compared(_logits(2), _logits(8)) == pytest.approx(4.0, rel=1e-3)
    assert _compared(_logits(8), _logits(8, sharpness=1.0)) < 0.3
    assert _compared(_logits(1), _logits(1)) == pytest.approx(1.0)


def test_witnesses_are_compared_now_and_then_on_a_bounded_memory() -> None:
    """More often at the start, then on every fourth batch; a saved state compares alike."""
    compared, asked = Information(), []
    for number in range(3 * EVERY):
        compared.observe(_logits(4), lambda number=number: asked.append(number) or {"batch": _logits(8)})
    assert asked == [0, 1, 2, 4, 8]
    assert len(compared.state_dict()["recent"]["batch"]["rows"]) == WINDOW
    other = Information()
    other.load_state_dict(compared.state_dict())
    like = torch.zeros(())
    assert (
        float(other.ratio("batch", like))
        == float(compared.ratio("batch", like))
        == pytest.approx(2.0, rel=1e-3)
    )
    assert float(other.ratio("anchor", like)) == 1.0


def test_statistics_that_blur_the_predictions_lose_say() -> None:
    """The batch's share falls with the classes that the network tells apart by its statistics, squared."""
    trusted = sicl.SICL().attach(_network().eval())
    for seed in range(3):
        signals = trusted(_images(seed)).signals
    calibration = trusted.calibration
    ratio = float(calibration.information.ratio("batch", torch.zeros(())))
    odds = float(calibration.say.weights("batch")[1] / calibration.say.weights("network")[1])
    assert float(signals["say_batch"] / signals["say_network"]) == pytest.approx(
        odds * ratio**POWER, rel=1e-4
    )
    assert ratio != pytest.approx(1.0, abs=0.05)


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
    assert float(out.signals["collapse"]) > 0.5
    assert float(out.signals["say_network"]) < 0.05
    assert float(out.signals["say_anchor"]) > 0.95
    # The colours are a question of style: what the anchor says of them weighs by its own agreement.
    said = torch.stack([out.signals[f"anchor_{name}"] for name in ("mirror", "crop", "style")])
    left = float(out.signals["say_network"])
    assert bool((out.confidence <= said.amax(dim=0) + left).all())
    assert bool((out.confidence >= said.amin(dim=0) - left).all())
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
    assert float(signals["say_anchor"] / signals["say_network"]) == pytest.approx(3.0, rel=1e-3)
