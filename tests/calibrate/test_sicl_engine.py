"""SICL on an adapter: it watches, and nothing it watches is changed."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from calibrate_networks import images, small_net
from torch import Tensor

import sicl
from sicl.adapt import Adapter
from sicl.engine.norms import batch_norms
from sicl.errors import OptionError

ENGINES = ("plain", "twin", "traced")


def cheap(**changes: Any) -> sicl.SICL:
    """A spec with few variants."""
    return sicl.SICL(**{"variants": 3, "content_variants": 3, **changes})


def parameters_after(adapter: Adapter, n: int = 3) -> list[Tensor]:
    """The network's state, after a few batches."""
    return [value.clone() for value in adapter.network.state_dict().values()]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("norm", ["batch", "frozen"])
@pytest.mark.parametrize("predict", ["before", "after"])
def test_calibrating_between_forward_and_backward_does_not_disturb_the_update(
    engine: str, norm: str, predict: str
) -> None:
    """TENT's network and logits are bit for bit those of a run without a calibrator."""
    alone = sicl.Tent(predict=predict).attach(small_net())
    watched = sicl.Tent(predict=predict).attach(small_net())
    trusted = cheap(engine=engine, norm=norm).attach(watched)
    for seed in range(3):
        logits = alone(images(16, seed=seed))
        assert torch.equal(trusted(images(16, seed=seed)).logits, logits)
    for own, other in zip(parameters_after(alone), parameters_after(watched)):
        assert torch.equal(own, other)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_seed_gives_the_same_confidence_bit_for_bit(engine: str) -> None:
    """Twice from the start, and again after a reset."""
    runs = []
    trusted = cheap(engine=engine).attach(sicl.Tent().attach(small_net()))
    for attached in (trusted, cheap(engine=engine).attach(sicl.Tent().attach(small_net())), trusted):
        attached.reset()
        runs.append(torch.stack([attached(images(16, seed=s)).confidence for s in range(3)]))
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])


def test_another_seed_gives_other_noise() -> None:
    """The seed is what decides."""
    first, second = (cheap(seed=s).attach(small_net())(images(16)).confidence for s in (0, 1))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("norm", ["batch", "frozen"])
def test_network_and_global_random_state_stay_as_they_are(engine: str, norm: str) -> None:
    """Buffers, counters, flags, forwards and hooks of the network; torch's and Python's generators."""
    adapter = sicl.BatchNorm().attach(small_net())
    trusted = cheap(engine=engine, norm=norm).attach(adapter)
    trusted(images(16))
    before = parameters_after(adapter)
    flags = [(m.training, sorted(m.__dict__), len(m._forward_hooks)) for m in adapter.network.modules()]
    objects = [id(b) for b in adapter.network.buffers()]
    states = torch.get_rng_state(), random.getstate()
    out = trusted(images(16, seed=2))
    assert all(torch.equal(a, b) for a, b in zip(before, parameters_after(adapter)))
    assert flags == [
        (m.training, sorted(m.__dict__), len(m._forward_hooks)) for m in adapter.network.modules()
    ]
    assert objects == [id(b) for b in adapter.network.buffers()]
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert not out.confidence.requires_grad


def test_counting_batch_norms_are_not_counted_up() -> None:
    """A network in training mode that tracks statistics keeps them through a calibration."""
    adapter = sicl.Source().attach(small_net())
    for norm in batch_norms(adapter.network):
        norm.train()
    spec = cheap(members=("style", "content"), relaxation="none", engine="plain")
    calibration = spec.calibration(adapter)
    before = [b.clone() for b in adapter.network.buffers()]
    calibration.engine.begin(images(16))
    assert all(torch.equal(a, b) for a, b in zip(before, adapter.network.buffers()))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_of_one_uses_what_was_remembered(engine: str) -> None:
    """One sample has no spread over samples: the recent ones give delta, so that votes can differ."""
    spec = cheap(members=("style",), engine=engine, relaxation="none", precision="float32")
    trusted = spec.attach(sicl.Source().attach(small_net()))
    first = trusted(images(1, seed=3))
    assert first.confidence.shape == (1,)
    assert torch.allclose(first.confidence, first.signals["softmax"], atol=1e-3)
    trusted(images(16))
    later = trusted(images(1, seed=3))
    assert not torch.allclose(later.confidence, later.signals["softmax"], atol=1e-3)


@pytest.mark.parametrize("votes", ["hard", "soft"])
@pytest.mark.parametrize("norm", ["batch", "frozen"])
def test_the_adaptive_budget_is_seeded_and_gives_a_confidence(votes: str, norm: str) -> None:
    """Same seed same confidence, between 0 and 1."""
    out = [
        sicl.SICL(variants="adaptive", votes=votes, norm=norm).attach(sicl.Tent().attach(small_net()))(
            images(16)
        )
        for _ in range(2)
    ]
    assert torch.equal(out[0].confidence, out[1].confidence)
    assert bool(((out[0].confidence >= 0) & (out[0].confidence <= 1)).all())


@pytest.mark.filterwarnings("ignore:Tent normalises a batch of one image")
def test_the_last_short_batch_of_a_stream_works() -> None:
    """Batch sizes may change at any time."""
    trusted = cheap().attach(sicl.Tent().attach(small_net()))
    assert [len(trusted(images(n, seed=n))) for n in (16, 16, 5, 1, 16)] == [16, 16, 5, 1, 16]


def test_an_unknown_layer_lists_near_ones_when_attached() -> None:
    """A typo in `layer` is answered at once, not at the first batch."""
    with pytest.raises(OptionError, match="Did you mean 'layer1'"):
        cheap(layer="layer_1").attach(small_net())


def test_the_engine_says_what_runs_and_why() -> None:
    """`calibration.engine` names the level and the reason for a slow one."""
    trusted = cheap(engine="plain").attach(small_net())
    assert trusted.calibration.engine.name == "not chosen yet"
    trusted(images(16))
    assert (trusted.calibration.engine.name, trusted.calibration.engine.reason) == ("plain", "asked for")
