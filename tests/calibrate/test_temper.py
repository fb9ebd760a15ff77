"""The temper: does the softmax deserve doubt at all?"""

from __future__ import annotations

import pytest
import torch
from calibrate_networks import images, small_net
from torch import Tensor, nn

import sicl
from sicl.calibrate.sicl.temper import OVERCONFIDENT, Temper, lowest
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


@pytest.mark.parametrize(("temperature", "share"), [(0.7, 0.5), (1.0, 0.5), (1.1, 0.25), (1.3, 0.0)])
def test_the_softmax_joins_as_far_as_it_is_not_overconfident(temperature: float, share: float) -> None:
    """Half of the confidence at 1 and below, nothing from 1.2 on; votes are sharpened, never blurred."""
    temper = Temper(torch.device("cpu"), seed=0)
    temper.temperature = torch.tensor(temperature)
    network, x = small_net().eval(), images(8)
    logits = network(x).detach()
    labels = logits.argmax(dim=1)
    softmax = (logits / temperature).softmax(dim=1).gather(1, labels[:, None])[:, 0]
    joined, error = temper.join(torch.zeros(8), torch.ones(8), logits, labels)
    torch.testing.assert_close(joined, share * softmax)
    torch.testing.assert_close(error, torch.full((8,), 1 - share))
    assert float(temper.votes_at()) == pytest.approx(min(1.0, temperature))


def test_a_few_mixtures_say_nothing() -> None:
    """Until there are enough the votes are left alone."""
    network, x = small_net().eval(), images(1)
    temper = Temper(torch.device("cpu"), seed=0)
    logits = network(x).detach()
    temper.observe(x, logits.argmax(dim=1), network)
    assert float(temper.temperature) > OVERCONFIDENT


def test_an_underconfident_network_is_doubted_less() -> None:
    """With its logits divided, the default gives more confidence than without a temper."""
    network = Sharpened(sicl.load_model("demo"), 0.3)
    x = photographs()
    tempered, plain = (
        sicl.SICL(layer="network.layer1:input", content_layer="network.layer1", temper=on).attach(network)(x)
        for on in (True, False)
    )
    assert float(tempered.signals["temperature"]) < 1
    assert float(tempered.confidence.mean()) > 1.2 * float(plain.confidence.mean())
