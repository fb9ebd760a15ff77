"""PseudoCal: what is mixed, what is kept, and what the temperature is fitted on."""

from __future__ import annotations

import pytest
import torch
from calibrate_networks import images, small_net
from torch import Tensor, nn

import sicl
from sicl.calibrate._temperature import fit_temperature
from sicl.errors import OptionError

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot determine a temperature")


class Spy(nn.Module):
    """Keeps what it was shown; the class is the pixel that is brightest."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []

    def forward(self, batch: Tensor) -> Tensor:
        self.seen.append(batch.clone())
        return 6 * batch.flatten(1)


def _one_hot(labels: list[int]) -> Tensor:
    return torch.eye(12)[labels].view(len(labels), 3, 2, 2)


def test_pairs_are_mixed_with_the_published_share() -> None:
    """Each mixture is 0.65 of one image and 0.35 of another one of the batch."""
    calibrated = sicl.PseudoCal().attach(Spy())
    batch = _one_hot([0, 1, 2, 3, 4, 5])
    calibrated(batch)
    mixed = calibrated.adapter.network.seen[1].flatten(1)  # type: ignore[union-attr, operator]
    torch.testing.assert_close(mixed.amax(dim=1), torch.full((6,), 0.65))
    assert torch.equal(mixed.argmax(dim=1), torch.arange(6))
    partners = mixed.topk(2, dim=1).indices[:, 1]
    assert sorted(partners.tolist()) == list(range(6))
    torch.testing.assert_close(mixed.topk(2, dim=1).values[:, 1], torch.full((6,), 0.35))


def test_pairs_of_one_class_are_dropped() -> None:
    """A batch of one class has nothing to mix: no pass, T = 1."""
    calibrated = sicl.PseudoCal().attach(Spy())
    out = calibrated(_one_hot([3] * 8))
    assert len(calibrated.adapter.network.seen) == 1  # type: ignore[arg-type]
    assert float(out.signals["temperature"]) == 1.0


def test_the_temperature_fits_the_mixtures_of_the_window() -> None:
    """Window of one batch: the fit on that batch's mixtures, labelled by their larger part."""
    model = small_net()
    calibrated = sicl.PseudoCal(window=1).attach(model)
    seen: list[Tensor] = []
    network = calibrated.adapter.network
    network.register_forward_pre_hook(lambda _module, args: seen.append(args[0]))
    batch = images(64)
    out = calibrated(batch)
    labels = out.labels
    partners = (seen[1] - 0.65 * batch) / 0.35
    other = model(partners.clamp(0, 1)).argmax(dim=1)
    kept = labels != other
    expected = fit_temperature(model(seen[1])[kept], labels[kept]).temperature
    assert float(out.signals["temperature"]) == pytest.approx(expected, rel=1e-3)


def test_a_window_remembers_earlier_batches() -> None:
    """The second batch's temperature differs with and without the first in the window."""
    outs = []
    for window in (1, 1024):
        calibrated = sicl.PseudoCal(window=window).attach(small_net())
        calibrated(images(32, seed=1))
        outs.append(float(calibrated(images(32, seed=2)).signals["temperature"]))
    assert outs[0] != outs[1]


def test_single_images_are_mixed_with_the_one_before() -> None:
    """A stream of single images gathers mixtures too, and starts to calibrate when it has ten."""
    calibrated = sicl.PseudoCal().attach(small_net())
    seen = [float(calibrated(image).signals["temperature"]) for image in images(60).split(1)]
    assert seen[:10] == [1.0] * 10
    assert seen[-1] != 1.0


@pytest.mark.parametrize("options", [{"mix": 0.5}, {"mix": 1.0}, {"window": 0}])
def test_bad_options_are_refused(options: dict[str, float]) -> None:
    """Specs are checked when made."""
    with pytest.raises(OptionError, match=next(iter(options))):
        sicl.PseudoCal(**options)  # type: ignore[arg-type]
