"""With labelled source data: a map from the answers to correctness, and nothing of it without."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from calibrate_networks import images, small_net, source_data

import sicl
from sicl.calibrate.sicl.fitted import IMAGES, Fitted, log_odds
from sicl.errors import DataError, InputError

SPEC = sicl.SICL(variants=2)


def _sample(n: int, noise: float = 0.5) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of which the first is overconfident and the second knows more, and what is right."""
    generator = torch.Generator().manual_seed(n)
    truth = torch.randn(n, generator=generator)
    right = torch.rand(n, generator=generator) < truth.sigmoid()
    first = 3 * truth + noise * torch.randn(n, generator=generator) + 2
    return torch.stack([first, truth, torch.randn(n, generator=generator)], dim=1), right


def test_the_map_fits_data_that_a_logistic_map_made() -> None:
    """Calibrated where the label-free confidence (the first feature) is far too sure."""
    (features, right), (new, truth) = _sample(4000), _sample(3999)
    found = Fitted.fit(features, right)(new)
    brier = (found - truth.float()).square().mean()
    assert float(brier) < float((new[:, 0].sigmoid() - truth.float()).square().mean()) - 0.03
    assert float(brier) < float((new[:, 1].sigmoid() - truth.float()).square().mean()) + 0.01
    assert float(found.mean()) == pytest.approx(float(truth.float().mean()), abs=0.03)


def test_a_confidence_that_is_right_already_is_kept() -> None:
    """The ridge pulls toward the label-free confidence, so noise beside it changes little."""
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(400, generator=generator)
    right = torch.rand(400, generator=generator) < confidence
    features = torch.cat([log_odds(confidence)[:, None], torch.randn(400, 6, generator=generator)], dim=1)
    assert float((Fitted.fit(features, right)(features) - confidence).abs().mean()) < 0.06


@pytest.mark.parametrize("right", [0, 1])
def test_source_data_all_right_or_all_wrong_give_a_finite_map(right: int) -> None:
    """Nothing to tell apart: sure, and finite."""
    features, _ = _sample(64)
    found = Fitted.fit(features, torch.full((64,), right, dtype=torch.bool))
    assert bool(torch.isfinite(found.weights).all())
    assert float((found(features) - right).abs().mean()) < 0.1


def test_too_few_data_are_one_sentence() -> None:
    """How many are needed, how many there are, and what to do without."""
    model = small_net()
    with pytest.raises(DataError, match=rf"at least {IMAGES} labelled images .*got 40; attach without it"):
        SPEC.attach(model, source=source_data(model))


def test_the_map_must_be_given_source_data() -> None:
    """`fitted=True` alone says how to pass them."""
    with pytest.raises(InputError, match=r"SICL\(fitted=True\)` needs labelled source data: pass `source="):
        sicl.SICL(fitted=True).attach(small_net())


def test_source_data_at_attach_mean_fitted() -> None:
    """Fitted on them, it is another confidence, and nearer to how often this network is right."""
    model = small_net()
    source = source_data(model, 160)
    plain = SPEC.attach(model)
    fitted = SPEC.attach(model, source=source)
    calibration: Any = fitted.calibration
    assert calibration.fitted is not None
    assert calibration.spec.fitted
    confidences = [
        torch.cat([live(images(32, seed=s)).confidence for s in (5, 6, 7)]) for live in (plain, fitted)
    ]
    # `source_data` makes one label in four wrong, whatever the network says.
    assert abs(float(confidences[1].mean()) - 0.75) < abs(float(confidences[0].mean()) - 0.75)


def test_a_panel_leaves_a_plain_sicl_without_labels() -> None:
    """Source data are for those that ask: beside temperature scaling the default stays label-free."""
    model = small_net()
    specs = {"plain": SPEC, "fitted": sicl.SICL(variants=2, fitted=True), "ts": sicl.TemperatureScaling()}
    panel = sicl.Panel(specs, sicl.Source().attach(model), source=source_data(model, IMAGES))
    alone, alone_fitted = SPEC.attach(model), SPEC.attach(model, source=source_data(model, IMAGES))
    for seed in (1, 2):
        out, batch = panel(images(20, seed=seed)), images(20, seed=seed)
        assert torch.equal(out["plain"].confidence, alone(batch).confidence)
        assert torch.equal(out["fitted"].confidence, alone_fitted(batch).confidence)
        assert not torch.equal(out["fitted"].confidence, out["plain"].confidence)


def test_the_printed_formula_knows_no_source_data() -> None:
    """It is the same with and without."""
    model, spec = small_net(), sicl.SICL.paper(variants=2, content_variants=2)
    a, b = (spec.attach(model, source=source)(images(20)) for source in (None, source_data(model, IMAGES)))
    assert torch.equal(a.confidence, b.confidence)


def test_fitting_changes_neither_the_adapter_nor_the_random_state() -> None:
    """A copy of the adapter adapts to the streams made of the source data."""
    model = small_net()
    adapter = sicl.Tent(lr=0.01).attach(model)
    before = {name: value.clone() for name, value in adapter.network.state_dict().items()}
    state = torch.get_rng_state()
    SPEC.attach(adapter, source=source_data(model, IMAGES))
    assert adapter.counters["batches"] == 0
    assert all(torch.equal(value, adapter.network.state_dict()[name]) for name, value in before.items())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_saved_map_continues_as_the_original_and_survives_a_reset() -> None:
    """The state holds it; resetting forgets the stream, not the source data."""
    model = small_net()
    sources = source_data(model, IMAGES), source_data(model, IMAGES + 60)
    original, other = (SPEC.attach(model, source=source) for source in sources)
    first = [original(images(20, seed=seed)).confidence for seed in (1, 2)]
    other.load_state_dict(copy.deepcopy(original.state_dict()))
    assert torch.equal(original(images(20, seed=3)).confidence, other(images(20, seed=3)).confidence)
    original.reset()
    again = [original(images(20, seed=seed)).confidence for seed in (1, 2)]
    assert all(torch.equal(a, b) for a, b in zip(first, again))
    with pytest.raises(InputError, match="state"):
        SPEC.attach(model).load_state_dict(original.state_dict())
