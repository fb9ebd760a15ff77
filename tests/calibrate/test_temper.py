"""The temper: at which temperature does the softmax fit images mixed from the stream?"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from calibrate_networks import images, small_net
from torch import Tensor, nn

import sicl
from sicl.calibrate.sicl.calibration import SiclCalibration
from sicl.calibrate.sicl.temper import Temper, lowest
from sicl.data import load_dataset


class Sharpened(nn.Module):
    """A network whose logits are multiplied."""

    def __init__(self, network: nn.Module, by: float) -> None:
        super().__init__()
        self.network, self.by = network, by

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.network(x) * self.by
        return logits


def photographs() -> Tensor:
    """32 real images."""
    return torch.from_numpy(load_dataset("demo").images[:32].copy()).permute(0, 3, 1, 2).float() / 255


def temper_of(network: nn.Module, n_batches: int = 6) -> Temper:
    """A temper after a few batches."""
    temper = Temper(torch.device("cpu"), seed=0)
    with torch.no_grad():
        for seed in range(n_batches):
            x = images(32, seed=seed)
            logits = network(x)
            temper.observe(x, logits.argmax(dim=1), network)
    return temper


def test_the_lowest_point_of_a_parabola_is_found_between_grid_points() -> None:
    """Exact for a parabola; at an end of the grid, the end."""
    grid = torch.linspace(-1, 1, 9)
    assert float(lowest(grid, (grid - 0.31) ** 2)) == pytest.approx(0.31, abs=1e-5)
    assert float(lowest(grid, -grid)) == pytest.approx(1.0)


def test_multiplied_logits_multiply_the_temperature() -> None:
    """What fits the mixtures is the same softmax, however the logits are scaled."""
    network = small_net().eval()
    base = float(temper_of(network).temperature)
    assert float(temper_of(Sharpened(network, 1.5)).temperature) == pytest.approx(1.5 * base, rel=0.05)


def test_it_agrees_with_pseudocal() -> None:
    """The same mixtures, fitted on a grid instead of by bisection."""
    model = sicl.load_model("demo")
    temper = Temper(torch.device("cpu"), seed=0)
    pseudocal = sicl.PseudoCal(seed=0).attach(model)
    x = photographs()
    out = pseudocal(x)
    temper.observe(x, out.labels, model)
    assert float(temper.temperature.log()) == pytest.approx(float(out.signals["temperature"].log()), abs=0.05)


@pytest.mark.parametrize("sharper", [1.0, 20.0], ids=["below 1", "above 1"])
@pytest.mark.parametrize("members", [("softmax", "mirror"), ("softmax",)], ids=["asked", "softmax alone"])
def test_answers_are_taken_halfway_to_a_temperature_above_1(members: tuple[Any, ...], sharper: float) -> None:
    """The softmax and the mirror alike; at all of one below 1, and of any where nothing lowers the softmax."""
    network, x = Sharpened(small_net(), sharper).eval(), images(32)
    spec = sicl.SICL(members=members, witnesses=("network",), say="equal", precision="float32")
    trusted = spec.attach(network)
    out, calibration = trusted(x), trusted.calibration
    assert isinstance(calibration, SiclCalibration)
    fits = float(calibration.temper.temperature)
    assert (fits > 1.05) == (sharper > 1)
    temperature = fits**0.5 if fits > 1 and len(members) > 1 else fits
    assert abs(temperature - 1) > 0.02
    views = [x, x.flip(-1)][: len(members)]
    with torch.no_grad():
        answers = [(network(view) / temperature).softmax(dim=1) for view in views]
    votes = [answer.gather(1, out.labels[:, None])[:, 0] for answer in answers]
    assert float(out.signals["temperature"]) == pytest.approx(temperature)
    torch.testing.assert_close(out.confidence, torch.stack(votes).mean(dim=0), atol=1e-4, rtol=0)


def test_a_few_mixtures_say_nothing() -> None:
    """Until there are enough the softmax is left alone."""
    network, x = small_net().eval(), images(1)
    temper = Temper(torch.device("cpu"), seed=0)
    logits = network(x).detach()
    temper.observe(x, logits.argmax(dim=1), network)
    assert float(temper.temperature) == 1.0


def test_there_is_a_temperature_unless_it_is_off() -> None:
    """Whatever the questions are."""
    x = images(32)
    for options, tempered in (({}, True), ({"members": ("mirror",)}, True), ({"temper": False}, False)):
        signals = sicl.SICL(variants=2, **options).attach(small_net())(x).signals  # type: ignore[arg-type]
        assert ("temperature" in signals) == tempered


def test_an_underconfident_network_is_doubted_less() -> None:
    """With its logits divided, the default gives more confidence than without a temper."""
    network = Sharpened(sicl.load_model("demo"), 0.3)
    x = photographs()
    tempered, plain = (
        sicl.SICL(members=("softmax",), witnesses=("network",), temper=on).attach(network)(x)
        for on in (True, False)
    )
    assert float(tempered.signals["temperature"]) < 1
    assert float(tempered.confidence.mean()) > 1.2 * float(plain.confidence.mean())


def test_all_witnesses_are_heard_at_the_networks_temperature() -> None:
    """The anchor's answers too, though its own softmax would fit mixed images at another."""
    model, x = sicl.load_model("demo"), photographs()
    spec = sicl.SICL(members=("softmax", "mirror"), engine="plain", precision="float32")
    trusted = spec.attach(Sharpened(model, 1.5))
    out, calibration = trusted(x), trusted.calibration
    assert isinstance(calibration, SiclCalibration)
    alone, anchors = Temper(torch.device("cpu"), seed=0), Temper(torch.device("cpu"), seed=0)
    for temper, logits in ((alone, calibration.anchor.live), (anchors, calibration.anchor.logits)):
        temper.observe(x, logits(x).argmax(dim=1), logits)
    fits = float(calibration.temper.temperature)
    assert fits == pytest.approx(float(alone.temperature), rel=1e-3)
    assert abs(float(anchors.temperature.log()) - math.log(fits)) > 0.01
    answers = (calibration.anchor.logits(x.flip(-1)) / fits**0.5).softmax(dim=1)
    expected = answers.gather(1, out.labels[:, None])[:, 0]
    torch.testing.assert_close(out.signals["anchor_mirror"], expected, atol=1e-4, rtol=0)
    assert float(out.signals["temperature"]) == pytest.approx(fits**0.5)
