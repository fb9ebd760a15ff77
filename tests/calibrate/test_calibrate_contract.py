"""The laws every calibrator keeps, on models that adapt and on models that do not."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from calibrate_networks import SPECS, WithLogits, images, small_net, small_vit, source_data, source_for
from torch import Tensor, nn

import sicl
from sicl.adapt import Adapter, Method, Moment
from sicl.calibrate import CALIBRATORS, Calibration
from sicl.errors import InputError, OptionError, UnsupportedModelError
from sicl.states import same

# An untrained network's mixtures or source errors may not determine a temperature; that is warned about once.
pytestmark = pytest.mark.filterwarnings("ignore:.*cannot determine a temperature")

METHODS: dict[str, Method] = {
    "source": sicl.Source(),
    "tent": sicl.Tent(lr=0.01, predict="after"),
    "rotta": sicl.Rotta(capacity=8, update_every=8),
}

every_calibrator = pytest.mark.parametrize("name", SPECS)
every_method = pytest.mark.parametrize("method", METHODS)


def _attached(name: str, method: str = "tent") -> sicl.calibrate.Calibrated:
    model = small_net()
    return SPECS[name].attach(METHODS[method].attach(model), source=source_for(name, model))


def _picture(network: nn.Module) -> dict[str, Any]:
    """All that a calibrator could leave changed."""
    state = {key: value.clone() for key, value in network.state_dict().items()}
    flags = [
        (
            module.training,
            getattr(module, "track_running_stats", None),
            getattr(module, "momentum", None),
            len(module._forward_hooks) + len(module._forward_pre_hooks),
            "forward" in module.__dict__,
        )
        for module in network.modules()
    ]
    gradients = [(parameter.requires_grad, parameter.grad is None) for parameter in network.parameters()]
    return {"state": state, "flags": flags, "gradients": gradients}


def _assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert before["flags"] == after["flags"]
    assert before["gradients"] == after["gradients"]
    assert before["state"].keys() == after["state"].keys()
    for key, value in before["state"].items():
        assert torch.equal(value, after["state"][key]), key


def _watched(adapter: Adapter, calibration: Calibration, batch: Tensor) -> list[sicl.Prediction]:
    """Predict while comparing the network before and after."""
    seen = []

    def observe(moment: Moment) -> None:
        before = _picture(moment.network)
        seen.append(calibration.predict(moment))
        _assert_same(before, _picture(moment.network))

    adapter.step(batch, observe)
    return seen


def test_the_registry_names_every_calibrator() -> None:
    """Six names, each a public class that can be made without options."""
    expected = ["softmax", "temperature_scaling", "mc_dropout", "transcal", "pseudocal", "sicl"]
    assert list(CALIBRATORS) == expected
    for kind in CALIBRATORS.values():
        assert getattr(sicl, kind.__name__) is kind
        assert kind() == kind()


@every_calibrator
@every_method
def test_the_network_is_left_bit_for_bit_as_it_was(name: str, method: str) -> None:
    """Parameters, buffers, flags, hooks and gradients are the same before and after, attachment included."""
    model = small_net()
    adapter = METHODS[method].attach(model)
    before = _picture(adapter.network)
    calibration = SPECS[name].calibration(adapter, source=source_for(name, model))
    _assert_same(before, _picture(adapter.network))
    for seed in (1, 2, 3):
        _watched(adapter, calibration, images(seed=seed))


@every_calibrator
def test_the_global_random_state_is_left_alone(name: str) -> None:
    """Neither attaching nor predicting draws from torch's global generator."""
    before = torch.get_rng_state()
    calibrated = _attached(name)
    calibrated(images())
    calibrated.reset()
    assert torch.equal(torch.get_rng_state(), before)


@every_calibrator
@every_method
def test_labels_are_the_adapters_and_confidence_is_a_probability(name: str, method: str) -> None:
    """Calibration changes no prediction; confidence is finite, float32 and in [0, 1]; nothing carries gradients."""
    model = small_net()
    adapter = METHODS[method].attach(model)
    alone = METHODS[method].attach(model)
    calibrated = SPECS[name].attach(adapter, source=source_for(name, model))
    for seed in (1, 2, 3):
        batch = images(seed=seed)
        out = calibrated(batch)
        logits = alone(batch)
        assert torch.equal(out.logits, logits)
        assert torch.equal(out.labels, logits.argmax(dim=1))
        assert out.confidence.dtype == torch.float32
        assert out.confidence.shape == (len(batch),)
        assert bool(((out.confidence >= 0) & (out.confidence <= 1)).all())
        assert not out.confidence.requires_grad
        assert all(value.ndim == 0 or value.shape == (len(batch),) for value in out.signals.values())


@every_calibrator
def test_the_same_seed_gives_the_same_confidence(name: str) -> None:
    """Two attachments agree bit for bit over a stream."""
    first, second = _attached(name), _attached(name)
    for seed in (1, 2, 3):
        assert torch.equal(first(images(seed=seed)).confidence, second(images(seed=seed)).confidence)


@every_method
def test_a_panel_gives_what_each_calibrator_gives_alone(method: str) -> None:
    """Company changes nothing: one adaptation run serves all calibrators."""
    model = small_net()
    source = source_data(model)
    panel = sicl.Panel(SPECS, METHODS[method].attach(model), source=source)
    alone = {
        name: spec.attach(METHODS[method].attach(model), source=source_for(name, model))
        for name, spec in SPECS.items()
    }
    for seed in (1, 2, 3):
        together = panel(images(seed=seed))
        for name, calibrated in alone.items():
            assert torch.equal(together[name].confidence, calibrated(images(seed=seed)).confidence), name


@every_calibrator
def test_a_saved_state_continues_as_the_original(name: str) -> None:
    """A fresh attachment that loads a state gives the next confidence bit for bit."""
    original, resumed = _attached(name), _attached(name)
    for seed in (1, 2):
        original(images(seed=seed))
    resumed.load_state_dict(copy.deepcopy(original.state_dict()))
    for seed in (3, 4):
        assert torch.equal(original(images(seed=seed)).confidence, resumed(images(seed=seed)).confidence)


def test_a_panel_saves_and_continues_all_at_once() -> None:
    """Its state holds the adapter's and every calibrator's; other names are refused."""
    model = small_net()
    source = source_data(model)
    original, resumed = (sicl.Panel(SPECS, sicl.Tent().attach(model), source=source) for _ in range(2))
    original(images(seed=1))
    resumed.load_state_dict(copy.deepcopy(original.state_dict()))
    first, second = original(images(seed=2)), resumed(images(seed=2))
    for name in SPECS:
        assert torch.equal(first[name].confidence, second[name].confidence), name
    with pytest.raises(OptionError, match="with the same names"):
        sicl.Panel({"other": sicl.Softmax()}, model).load_state_dict(original.state_dict())


@every_calibrator
def test_reset_returns_to_the_start(name: str) -> None:
    """After `reset` the stream plays again bit for bit."""
    calibrated = _attached(name)
    first = [calibrated(images(seed=seed)).confidence for seed in (1, 2, 3)]
    calibrated.reset()
    again = [calibrated(images(seed=seed)).confidence for seed in (1, 2, 3)]
    assert all(torch.equal(a, b) for a, b in zip(first, again))


@every_calibrator
@pytest.mark.parametrize("call", [1, 2, 3])
def test_an_exception_leaves_nothing_patched(name: str, call: int) -> None:
    """A network that fails in the middle of a calibration is left as it was."""
    adapter = sicl.Tent().attach(small_net())
    calibration = SPECS[name].calibration(adapter, source=source_for(name, small_net()))
    calls = 0

    def fail(_module: nn.Module, _args: Any, _output: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise ArithmeticError

    moment = Moment(adapter.network, images(), adapter(images()))
    handle = adapter.network.get_submodule("layer2.1").register_forward_hook(fail)
    before = _picture(adapter.network)
    try:
        calibration.predict(moment)
    except ArithmeticError:
        assert calls == call
    _assert_same(before, _picture(adapter.network))
    handle.remove()
    assert bool(torch.isfinite(calibration.predict(moment).confidence).all())


@every_calibrator
def test_batches_of_one_work(name: str) -> None:
    """A stream of single images gives a confidence for each."""
    calibrated = _attached(name, "source")
    for image in images(6).split(1):
        assert bool(torch.isfinite(calibrated(image).confidence).all())


@every_calibrator
@pytest.mark.parametrize("make", [small_vit, lambda: WithLogits(small_net())], ids=["vit", "logits object"])
def test_other_networks_work(name: str, make: Any) -> None:
    """Transformers, and models that return an object with `.logits`."""
    model = make()
    calibrated = SPECS[name].attach(sicl.Tent(lr=0.01).attach(model), source=source_for(name, model))
    for seed in (1, 2):
        assert bool(torch.isfinite(calibrated(images(seed=seed)).confidence).all())


@every_calibrator
def test_a_plain_model_is_calibrated_without_adaptation_and_left_alone(name: str) -> None:
    """`attach(model)` works on a private copy."""
    model = small_net()
    before = _picture(model)
    out = SPECS[name].attach(model, source=source_for(name, model))(images())
    _assert_same(before, _picture(model))
    assert torch.equal(out.labels, model(images()).argmax(dim=1))


@pytest.mark.parametrize("name", ["temperature_scaling", "transcal"])
def test_missing_source_data_is_asked_for(name: str) -> None:
    """The message says which calibrator needs it, and how to pass it."""
    with pytest.raises(InputError, match=r"needs labelled source data: pass `source=SourceData"):
        SPECS[name].attach(small_net())


def test_attaching_to_something_else_says_what_is_needed() -> None:
    """A calibrator attaches to a module or an adapter only."""
    with pytest.raises(UnsupportedModelError, match=r"torch\.nn\.Module or an adapter, got str"):
        sicl.Softmax().attach("model")  # type: ignore[arg-type]


@every_method
@every_calibrator
def test_warming_up_leaves_no_trace(name: str, method: str) -> None:
    """After `warm_up` a calibrated model is in the same state and answers what it would have answered without."""
    warm, cold = _attached(name, method), _attached(name, method)
    for i, n in enumerate((12, 1, 12)):
        before, picture = warm.state_dict(), _picture(warm.adapter.network)
        warm.warm_up((n, 3, 8, 8))
        assert same(warm.state_dict(), before)
        _assert_same(picture, _picture(warm.adapter.network))
        if method != "tent" or n > 1:
            left, right = warm(images(n, seed=i)), cold(images(n, seed=i))
            assert torch.equal(left.confidence, right.confidence)
            assert same(left.signals, right.signals)


def test_a_panel_warms_up_all_its_calibrators() -> None:
    """Each has its engine chosen, and none has learnt anything."""
    panel = sicl.Panel({"a": sicl.SICL(variants=2), "b": sicl.PseudoCal(window=16)}, small_net())
    before = panel.state_dict()
    panel.warm_up([4, 3, 8, 8])
    assert same(panel.state_dict(), before)
    assert panel.calibrations["a"].engine.name != "not chosen yet"
