"""Vanilla temperature scaling: the source model's temperature, or the adapted model's if asked."""

from __future__ import annotations

import warnings

import pytest
import torch
from calibrate_networks import images, small_net, source_data

import sicl
from sicl.calibrate._temperature import fit_temperature
from sicl.errors import OptionError


def test_the_temperature_is_the_source_models() -> None:
    """Under TENT too it is fitted with running statistics, and kept while the model moves."""
    model = small_net()
    source = source_data(model)
    expected = fit_temperature(model(source.images), source.labels).temperature
    calibrated = sicl.TemperatureScaling().attach(sicl.Tent(lr=0.1).attach(model), source=source)
    for seed in (1, 2):
        out = calibrated(images(seed=seed))
        assert float(out.signals["temperature"]) == pytest.approx(expected, rel=1e-4)
        scaled = (out.logits / expected).softmax(dim=1).amax(dim=1)
        torch.testing.assert_close(out.confidence, scaled, rtol=1e-4, atol=1e-5)


def test_refitting_follows_the_adapted_model() -> None:
    """With `every=1` the temperature is that of the network as it predicts now."""
    model = small_net()
    source = source_data(model)
    adapter = sicl.Tent(lr=0.1, predict="after").attach(model)
    calibrated = sicl.TemperatureScaling(every=1, batch_size=len(source)).attach(adapter, source=source)
    seen = [float(calibrated(images(seed=seed)).signals["temperature"]) for seed in (1, 2)]
    assert seen[0] != seen[1]
    with torch.no_grad():
        expected = fit_temperature(adapter.network(source.images), source.labels).temperature
    assert seen[1] == pytest.approx(expected, rel=1e-4)


def test_degenerate_source_data_warns_once() -> None:
    """Two samples: T stays at 1, one warning however often it is fitted."""
    model = small_net()
    few = sicl.SourceData(images(2), torch.tensor([0, 1]))
    with pytest.warns(UserWarning, match="only 2 samples"):
        calibrated = sicl.TemperatureScaling(every=1).attach(model, source=few)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        out = calibrated(images())
    torch.testing.assert_close(out.confidence, out.logits.softmax(dim=1).amax(dim=1))


def test_large_source_data_is_sampled() -> None:
    """`source_samples` bounds the cost; the draw depends on the seed only."""
    model = small_net()
    source = source_data(model, 60)
    options = [
        sicl.TemperatureScaling(source_samples=20, seed=seed).attach(model, source=source)(images())
        for seed in (0, 0, 1)
    ]
    temperatures = [float(out.signals["temperature"]) for out in options]
    assert temperatures[0] == temperatures[1] != temperatures[2]


@pytest.mark.parametrize("options", [{"every": -1}, {"source_samples": 0}, {"batch_size": 0}])
def test_bad_options_are_refused(options: dict[str, int]) -> None:
    """Specs are checked when made."""
    with pytest.raises(OptionError, match=next(iter(options))):
        sicl.TemperatureScaling(**options)
