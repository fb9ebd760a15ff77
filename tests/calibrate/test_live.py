"""Live calibrated models: copied, pickled, shared between threads, interrupted, and on models as people have them."""

from __future__ import annotations

import copy
import pickle
import threading
from typing import Any

import pytest
import torch
from calibrate_networks import SPECS, images, small_net, source_for
from torch import Tensor, nn

import sicl
from sicl.errors import InputError, OptionError, SiclError, UnsupportedModelError
from sicl.models.cifar import resnet18
from sicl.models.outputs import FromProbabilities, TwoClasses

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot determine a temperature")

METHODS = {"tent": sicl.Tent(lr=0.01), "rotta": sicl.Rotta(capacity=8, update_every=8)}


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("copied", [copy.deepcopy, _pickled], ids=["deepcopy", "pickle"])
def test_a_copy_goes_on_alone(name: str, method: str, copied: Any) -> None:
    """After some batches: the next confidences are the same, and neither changes the other."""
    model = small_net()
    original = SPECS[name].attach(METHODS[method].attach(model), source=source_for(name, model))
    for seed in (1, 2):
        original(images(seed=seed))
    other = copied(original)
    expected = [original(images(seed=seed)).confidence for seed in (3, 4, 5)]
    found = [other(images(seed=seed)).confidence for seed in (3, 4, 5)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected))


@pytest.mark.parametrize("engine", ["plain", "twin", "traced"])
def test_copies_of_a_fast_engine_share_no_tensor(engine: str) -> None:
    """What was traced is a cache: a copy makes its own, of its own network."""
    trusted = sicl.SICL(variants=2, content_variants=2, engine=engine).attach(sicl.Tent().attach(small_net()))
    trusted(images(16))
    other = copy.deepcopy(trusted)
    mine = {t.data_ptr() for t in trusted.adapter.network.state_dict().values() if t.numel()}
    calibration: Any = other.calibration
    for network in (other.adapter.network, calibration.anchor.network, calibration.anchor.live):
        assert not mine & {t.data_ptr() for t in network.state_dict().values() if t.numel()}
    assert calibration.anchor.live is other.adapter.network
    assert calibration.witnesses[0].questions["style"].engine.split.network is other.adapter.network


def test_a_copy_of_a_panel_works() -> None:
    """Several calibrators on one adapter stay on one adapter."""
    panel = sicl.Panel(
        {"sicl": SPECS["sicl"], "softmax": sicl.Softmax()}, sicl.Tent(lr=0.01).attach(small_net())
    )
    panel(images())
    other = _pickled(panel)
    expected, found = panel(images(seed=2)), other(images(seed=2))
    for name, out in expected.items():
        assert torch.equal(found[name].confidence, out.confidence), name


@pytest.mark.parametrize("panel", [False, True])
def test_threads_take_turns(panel: bool) -> None:
    """Two threads on one object: as many batches as were sent, and no error."""
    adapter = sicl.Tent(lr=1e-4).attach(small_net())
    live: Any = sicl.Panel({"a": SPECS["sicl"]}, adapter) if panel else SPECS["sicl"].attach(adapter)
    errors: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in range(4):
                out = live(images(seed=10 * seed + i))
                out = out["a"] if panel else out
                assert torch.equal(out.labels, out.logits.argmax(dim=1))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert adapter.counters["batches"] == 12


@pytest.mark.parametrize("name", SPECS)
def test_an_interrupted_batch_leaves_the_calibration_as_it_was(name: str) -> None:
    """The next batch gives what it would have given without the interrupted one."""
    model = small_net()
    calm, disturbed = (
        SPECS[name].attach(sicl.Source().attach(model), source=source_for(name, model)) for _ in range(2)
    )
    for live in (calm, disturbed):
        live(images(seed=1))
    calls = 0

    def stop(_module: nn.Module, _args: Any, _output: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise KeyboardInterrupt

    handle = disturbed.adapter.network.get_submodule("layer1").register_forward_hook(stop)
    try:
        disturbed(images(seed=2))
    except KeyboardInterrupt:
        handle.remove()
        expected = calm(images(seed=3)).confidence
        assert torch.equal(disturbed(images(seed=3)).confidence, expected)


def test_the_state_of_another_calibrator_is_refused() -> None:
    """In one sentence, with the name of what it is."""
    state = sicl.Softmax().attach(small_net()).state_dict()
    with pytest.raises(InputError, match="is not one of SICL"):
        sicl.SICL().attach(small_net()).load_state_dict(state)


@pytest.mark.parametrize("value", [0.0, 0.3])
@pytest.mark.parametrize("method", [sicl.Tent(), sicl.BatchNorm(), sicl.Sar()])
def test_a_first_batch_of_equal_images_changes_nothing(method: Any, value: float) -> None:
    """Black images first, as a stream may begin, and a batch norm before the cut."""
    batch = torch.cat([torch.full((4, 3, 16, 16), value), torch.rand(12, 3, 16, 16)])
    spec = sicl.SICL(variants=2, content_variants=2)
    first = spec.attach(method.attach(resnet18(width=4, n_classes=4)))(batch)
    assert bool(torch.isfinite(first.confidence).all())


class Probabilities(nn.Module):
    """Ends in a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_net()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x).softmax(dim=1)
        return out


class OneLogit(nn.Module):
    """A sigmoid head."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = small_net()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x)[:, :1]
        return out


class InADict(Probabilities):
    """Returns a dict with "logits"."""

    def forward(self, x: Tensor) -> Any:
        return {"logits": self.inner(x)}


@pytest.mark.parametrize(
    ("model", "wrapper", "sentence"),
    [(Probabilities, FromProbabilities, "probabilities"), (OneLogit, TwoClasses, "one logit")],
)
def test_other_outputs_are_refused_with_the_wrapper_that_helps(
    model: Any, wrapper: Any, sentence: str
) -> None:
    """Probabilities and sigmoid heads look like logits and are none."""
    for spec in (sicl.Softmax(), sicl.SICL(variants=2, content_variants=2)):
        with pytest.raises(UnsupportedModelError, match=f"{sentence}.*{wrapper.__name__}"):
            spec.attach(model().eval())(images())
        out = spec.attach(wrapper(model().eval()))(images())
        assert out.logits.shape[1] >= 2
        assert bool(((out.confidence > 0) & (out.confidence <= 1)).all())


def test_wrappers_keep_the_probabilities() -> None:
    """The softmax of what they return is what the model said."""
    probabilities, one = Probabilities().eval(), OneLogit().eval()
    with torch.no_grad():
        expected = probabilities(images())
        torch.testing.assert_close(FromProbabilities(probabilities)(images()).softmax(dim=1), expected)
        two = TwoClasses(one)(images()).softmax(dim=1)[:, 1]
        torch.testing.assert_close(two, one(images())[:, 0].sigmoid())


def test_nan_logits_are_named() -> None:
    """A network with broken weights is not told to name another layer."""
    model = small_net()
    with torch.no_grad():
        model.get_parameter("fc.bias").fill_(float("nan"))
    with pytest.raises(UnsupportedModelError, match="NaN or infinite logits"):
        sicl.SICL().attach(model)(images())


def test_dicts_with_logits_are_accepted() -> None:
    """As those of many training frameworks."""
    inside, plain = SPECS["sicl"].attach(InADict().eval()), SPECS["sicl"].attach(InADict().inner.eval())
    torch.testing.assert_close(inside(images()).confidence, plain(images()).confidence, atol=1e-4, rtol=0)


def test_attaching_in_inference_mode_works() -> None:
    """The copy is made outside of it, so that it can adapt."""
    with torch.inference_mode():
        trusted = SPECS["sicl"].attach(sicl.Tent().attach(small_net().eval()))
        first = trusted(images())
    expected = SPECS["sicl"].attach(sicl.Tent().attach(small_net()))(images())
    torch.testing.assert_close(first.confidence, expected.confidence)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace:DeprecationWarning")
def test_compiled_models_are_unwrapped_and_scripted_ones_refused() -> None:
    """A compiled model is the module it was made from; a scripted one has no modules to adapt."""
    model = small_net()
    compiled = torch.compile(model, backend="eager")
    expected = SPECS["sicl"].attach(model)(images())
    found = SPECS["sicl"].attach(compiled)(images())  # type: ignore[arg-type]
    assert torch.equal(found.confidence, expected.confidence)
    with torch.no_grad():
        traced = torch.jit.trace(model, images(), check_trace=False)
    with pytest.raises(UnsupportedModelError, match="scripted or traced"):
        SPECS["sicl"].attach(traced)


def test_half_a_variant_is_refused() -> None:
    """Counts are whole numbers."""
    with pytest.raises(OptionError, match="`variants` must be"):
        sicl.SICL(variants=2.5)  # type: ignore[arg-type]
    assert issubclass(OptionError, SiclError)
