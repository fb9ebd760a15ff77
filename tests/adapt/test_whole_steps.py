"""A step happens wholly or not at all, one at a time; a state fits or is refused; copies share nothing."""

from __future__ import annotations

import copy
import io
import pickle
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from adapt_networks import SPECS, TinyNetwork, random_images, small_resnet, tiny_images
from torch import Tensor, nn

import sicl
from sicl.adapt import Adapter, Method, Moment, Rotta, Sar, Tent
from sicl.errors import InputError

SOURCE = sicl.SourceData(tiny_images(16, seed=5), torch.arange(16) % 3)
LEARNERS = [name for name in SPECS if name not in ("source", "batchnorm", "lame")]

pytestmark = pytest.mark.filterwarnings("error")


def attached(name: str, network: nn.Module | None = None, **changes: object) -> Adapter:
    spec = replace(SPECS[name], **changes)  # type: ignore[arg-type]
    return spec.attach(network or TinyNetwork(), source=SOURCE)


def stream(n: int = 3) -> list[Tensor]:
    return [tiny_images(8, seed=10 + i) for i in range(n)]


def flat(state: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of a state by their path."""
    if isinstance(state, dict):
        items = [(str(key), value) for key, value in state.items()]
    elif isinstance(state, list | tuple):
        items = [(str(i), value) for i, value in enumerate(state)]
    else:
        return {path: state}
    return {k: v for key, value in items for k, v in flat(value, f"{path}/{key}").items()}


def same_state(a: dict[str, Any], b: dict[str, Any]) -> bool:
    one, two = flat(a), flat(b)
    return one.keys() == two.keys() and all(
        torch.equal(one[k], two[k]) if isinstance(one[k], Tensor) else one[k] == two[k] for k in one
    )


class Stopped(KeyboardInterrupt):
    """Ctrl-C, told apart from a real one."""


class Bomb:
    """A hook that goes off at its n-th call."""

    def __init__(self, n: int) -> None:
        self.left = n

    def __call__(self, *_: object) -> None:
        self.left -= 1
        if self.left == 0:
            raise Stopped


def networks(adapter: Adapter) -> list[nn.Module]:
    return [value for value in vars(adapter).values() if isinstance(value, nn.Module)]


@pytest.mark.parametrize("predict", ["before", "after"])
@pytest.mark.parametrize("name", SPECS)
def test_an_interrupted_step_leaves_the_state_as_before(name: str, predict: str) -> None:
    """Ctrl-C in any forward pass, in the observer or right after the optimizer's step; the stream then goes on."""
    adapter, calm = attached(name, predict=predict), attached(name, predict=predict)
    first, second, third = stream()
    for each in (adapter, calm):
        each(first)
        each(second)
    before = adapter.state_dict()
    n_passes = 0
    for n in (1, 2, 3):
        bomb = Bomb(n)
        handles = [network.register_forward_hook(bomb) for network in networks(adapter)]
        try:
            adapter.step(third, _explode)
        except Stopped:
            n_passes += bomb.left == 0
        for handle in handles:
            handle.remove()
        assert same_state(adapter.state_dict(), before)
    assert n_passes >= 1
    if name in LEARNERS:
        adapter.optimizer.register_step_post_hook(Bomb(1))
        with pytest.raises(Stopped):
            adapter(third)
        assert same_state(adapter.state_dict(), before)
    assert torch.equal(adapter(third), calm(third))


def _explode(moment: Moment) -> None:
    raise Stopped


@pytest.mark.parametrize("name", LEARNERS)
def test_an_update_that_is_not_finite_is_not_made(name: str) -> None:
    """It is counted; the logits are those of the state before, and stay finite."""
    adapter = attached(name, lr=1e30)
    before = adapter.state_dict()
    for images in stream(2):
        assert torch.isfinite(adapter(images)).all()
    assert adapter.counters["refused"] == adapter.summary()["refused"] == 2
    assert adapter.counters["updates"] == 0
    after = adapter.state_dict()
    assert same_state(after["network"], before["network"])
    assert same_state(after["optimizer"], before["optimizer"])


@pytest.mark.parametrize("name", ["source", "tent", "sotta"])
def test_one_mad_pixel_is_refused_before_anything_moves(name: str) -> None:
    """1e38 is finite, and would poison every later batch."""
    adapter = attached(name)
    expected = attached(name)(stream()[0])
    images = tiny_images(8)
    images[0, 0, 0, 0] = 1e38
    with pytest.raises(InputError, match=r"`images` must lie in \[0, 1\], got values from .* to 1e\+38"):
        adapter(images)
    assert torch.equal(adapter(stream()[0]), expected)


@pytest.mark.parametrize(
    ("scale", "shift", "cause"), [(255.0, 0.0, "Divide them by 255"), (4.0, -2.0, "normalised already")]
)
def test_images_on_another_scale_get_one_warning_with_the_likely_cause(
    scale: float, shift: float, cause: str
) -> None:
    """Once an adapter; a little beyond [0, 1] is nobody's mistake."""
    adapter = attached("tent")
    adapter(1.4 * tiny_images(8) - 0.2)
    with pytest.warns(UserWarning, match=cause):
        adapter(scale * tiny_images(8) + shift)
    adapter(scale * tiny_images(8) + shift)


@pytest.mark.parametrize("name", ["batchnorm", "tent", "sar", "rotta"])
def test_threads_take_turns(name: str) -> None:
    """Four threads, one adapter: as many whole steps as calls, each like one of a single thread's."""
    adapter, alone, got = attached(name), attached(name), []
    images = stream()[0]
    expected = [alone(images) for _ in range(4)]

    def work() -> None:
        adapter.step(images, lambda moment: got.append(moment.logits.clone()))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    assert adapter.counters == alone.counters


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
@pytest.mark.parametrize("name", SPECS)
def test_copies_of_a_live_adapter_go_on_alike_and_share_nothing(name: str, how: str) -> None:
    """In the middle of a stream, random state and start included."""
    adapter = attached(name)
    adapter(stream()[0])
    twin = copy.deepcopy(adapter) if how == "deepcopy" else pickle.loads(pickle.dumps(adapter))
    expected = [adapter(images) for images in stream(2)]
    before = adapter.state_dict()
    assert all(torch.equal(twin(images), logits) for images, logits in zip(stream(2), expected))
    assert same_state(adapter.state_dict(), before)
    twin.reset()
    assert torch.equal(twin(stream()[0]), attached(name)(stream()[0]))


def test_a_state_of_other_options_is_refused_with_what_differs() -> None:
    """Nothing of it is taken over."""
    adapter = attached("tent", lr=1e-3)
    adapter(stream()[0])
    before = adapter.state_dict()
    other = attached("tent", lr=9.0, steps=2).state_dict()
    with pytest.raises(InputError, match=r"lr is 9\.0 there and 0\.001 here, steps is 2 there and 1 here"):
        adapter.load_state_dict(other)
    assert same_state(adapter.state_dict(), before)


def _without(part: str) -> Callable[[dict[str, Any]], object]:
    return lambda state: state.pop(part)


@pytest.mark.parametrize(
    "damage",
    [
        *map(_without, ("network", "counters", "generator", "optimizer", "spec", "method")),
        lambda state: state.update(surprise=1),
        lambda state: state["network"].popitem(),
        lambda state: state["network"].update({"head.bias": torch.zeros(5)}),
        lambda state: state.update(network=None),
        lambda state: state.update(spec=3),
        lambda state: state.update(generator=torch.zeros(2)),
        lambda state: state.update(optimizer={}),
        lambda state: state["optimizer"].update(param_groups=[]),
        lambda state: state.update(counters=None),
    ],
)
@pytest.mark.parametrize("name", ["tent", "rotta"])
def test_a_damaged_state_changes_nothing(name: str, damage: Callable[[dict[str, Any]], object]) -> None:
    """One sentence, and the adapter goes on as if nobody had tried."""
    adapter = attached(name)
    adapter(stream()[0])
    before = adapter.state_dict()
    state = attached(name).state_dict()
    damage(state)
    with pytest.raises(InputError, match="`state`"):
        adapter.load_state_dict(state)
    assert same_state(adapter.state_dict(), before)


@pytest.mark.parametrize("bad", [None, 3, "state", []])
def test_a_state_that_is_none_is_refused(bad: Any) -> None:
    """Whatever is given."""
    with pytest.raises(InputError, match="`state` must come from an attachment of Tent"):
        attached("tent").load_state_dict(bad)


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, torch.float16) for n in LEARNERS] + [("tent", torch.bfloat16)]
)
def test_models_in_half_precision_learn_in_float32(name: str, dtype: torch.dtype) -> None:
    """One warning at attachment; the logits of the second batch are finite, and near those of float32."""
    network = TinyNetwork()
    with pytest.warns(UserWarning, match="private copy is kept in float32"):
        adapter = attached(name, network.to(dtype))
    plain = attached(name, network.float())
    assert all(parameter.dtype == torch.float32 for parameter in adapter.network.parameters())
    for images in stream(2):
        assert torch.equal(adapter(images.to(dtype).float()), plain(images.to(dtype).float()))


def test_methods_that_do_not_learn_keep_half_precision() -> None:
    """There is nothing to lose."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter = attached("source", TinyNetwork().to(torch.bfloat16))
        assert adapter(stream()[0]).dtype == torch.float32
    assert next(adapter.network.parameters()).dtype == torch.bfloat16


@dataclass(frozen=True, kw_only=True)
class Old(Method):
    """A method written for the hooks of 0.1."""

    def _adapter(self, network: nn.Module, source: sicl.SourceData | None) -> Adapter:
        return OldAdapter(self, network)


class OldAdapter(Adapter):
    def __init__(self, spec: Method, network: nn.Module) -> None:
        super().__init__(spec, network)
        self.seen = 0

    def update(self, images: Tensor, logits: Tensor | None) -> None:
        self.seen += len(images)
        self.network.head.bias.data += 0.1

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "seen": self.seen}

    def _load(self, state: dict[str, Any]) -> None:
        super()._load(state)
        self.seen = state["seen"]


def test_methods_with_the_hooks_of_old_still_work() -> None:
    """State, reset and an interrupted step included, though they write through `.data`, which nobody counts."""
    adapter = Old(predict="after").attach(TinyNetwork())
    for images in stream():
        adapter(images)
    saved = adapter.state_dict()
    assert adapter.seen == saved["seen"] == 24
    with pytest.raises(Stopped):
        adapter.step(stream()[0], _explode)
    assert same_state(adapter.state_dict(), saved)
    adapter(stream()[0])
    adapter.load_state_dict(saved)
    assert adapter.seen == 24
    adapter.reset()
    assert adapter.seen == 0
    assert torch.equal(adapter.network.head.bias, TinyNetwork().head.bias)


def test_a_method_without_the_hook_says_which_it_needs() -> None:
    """The name of the hook is in the error."""

    @dataclass(frozen=True, kw_only=True)
    class Empty(Method):
        pass

    with pytest.raises(NotImplementedError, match=r"`Empty` must define `adapter\(network, \*, source\)`"):
        Empty().attach(TinyNetwork())


def test_what_never_moves_is_not_copied_before_a_step() -> None:
    """Convolutions share the memory of the start; a state of 100 steps takes what one of a step takes."""
    adapter = Tent().attach(small_resnet())
    for _ in range(2):
        adapter(random_images())
    kept, start = adapter._undo._kept["network"], adapter._start["network"]
    assert kept["conv1.weight"].saved is start["conv1.weight"]
    assert kept["bn1.weight"].saved is not start["bn1.weight"]


@pytest.mark.parametrize("name", ["tent", "rotta", "cotta"])
def test_a_model_attached_in_inference_mode_learns(name: str) -> None:
    """Wherever the model was made, too."""
    with torch.inference_mode():
        adapter = attached(name, copy.deepcopy(TinyNetwork()))
        got = [adapter(images) for images in stream(2)]
    plain = attached(name)
    assert all(torch.equal(plain(images), logits) for images, logits in zip(stream(2), got))


@pytest.mark.parametrize("predict", ["before", "after"])
def test_a_step_without_update_only_predicts(predict: str) -> None:
    """The counters see the batch, the network stays."""
    adapter = attached("tent", predict=predict)
    before = adapter.state_dict()["network"]
    logits = adapter.step(stream()[0], update=False)
    assert torch.equal(logits, attached("batchnorm")(stream()[0]))
    assert same_state(adapter.state_dict()["network"], before)
    assert (adapter.counters["batches"], adapter.counters["updates"]) == (1, 0)


def test_sar_counts_its_resets_in_its_summary() -> None:
    """Numbers, for a record."""
    adapter = Sar(lr=0.1, margin=2.0, recovery=5.0).attach(TinyNetwork())
    adapter(stream()[0])
    assert adapter.summary()["resets"] == 1.0


def test_a_state_survives_a_file_and_another_process_order() -> None:
    """Rotta's replaced buffers included: rolled back, saved, loaded, the same."""
    adapter = Rotta(capacity=8, update_every=8).attach(TinyNetwork())
    for images in stream():
        adapter(images)
    with pytest.raises(Stopped):
        adapter.step(stream()[0], _explode)
    file = io.BytesIO()
    torch.save(adapter.state_dict(), file)
    file.seek(0)
    resumed = Rotta(capacity=8, update_every=8).attach(TinyNetwork())
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(resumed(stream()[1]), adapter(stream()[1]))
