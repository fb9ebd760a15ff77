"""The anchor: the network of the time of attachment, its early norms by the batch, a witness."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from calibrate_networks import small_net, small_vit
from torch import Tensor, nn

import sicl
from sicl.adapt import Adapter, Method
from sicl.calibrate.sicl import anchor as anchor_module
from sicl.calibrate.sicl.anchor import Anchor
from sicl.data import load_dataset, source_data
from sicl.engine.norms import batch_norms, batch_statistics, early_norms, only_normalises, statistics_of
from sicl.metrics import expected_calibration_error

ROTTA = sicl.Rotta(update_every=16)
SOTTA = sicl.Sotta(update_every=16, threshold=0.5)
METHODS: dict[str, Method] = {
    "source": sicl.Source(),
    "batch statistics": sicl.BatchNorm(),
    "tent": sicl.Tent(lr=0.05),
    "rotta": ROTTA,
    "sotta": SOTTA,
    "cotta": sicl.Cotta(lr=0.05, views=0),
}
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")


def _images(start: int = 0) -> Tensor:
    return source_data(load_dataset("demo"), n=96).images[start : start + 32]


def _adapted(adapter: Adapter, batches: int = 2) -> Adapter:
    for i in range(batches):
        adapter(_images(32 * i))
    return adapter


@torch.no_grad()
def _said_as_attached(images: Tensor) -> Tensor:
    """What the demo network says with the first 15 of its 20 batch norms by the batch, the others as trained."""
    model = sicl.load_model("demo").eval()
    with batch_statistics(model, modules=batch_norms(model)[:15]):
        logits: Tensor = model(images)
    return logits


@pytest.mark.parametrize("case", METHODS)
def test_it_says_what_the_network_said_before_it_adapted(case: str) -> None:
    """Whatever the method and its steps: the network of attachment, early norms by the batch, late ones as trained."""
    adapter = METHODS[case].attach(sicl.load_model("demo"))
    anchor = Anchor(adapter.network)
    before = anchor.logits(_images(64))
    _adapted(adapter)
    assert torch.equal(anchor.logits(_images(64)), before)
    torch.testing.assert_close(before, _said_as_attached(_images(64)), atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        assert not torch.allclose(adapter.network(_images(64)), before, atol=1e-2)


def test_it_copies_only_what_may_adapt() -> None:
    """Convolutions are the live network's own tensors; affine parameters and late statistics are not."""
    adapter = sicl.Tent().attach(sicl.load_model("demo"))
    anchor = Anchor(adapter.network)
    live, own = (dict(net.named_parameters()) for net in (adapter.network, anchor.network))
    copied = {name for name in live if live[name] is not own[name]}
    norms = {n for n, m in adapter.network.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert copied == {f"{norm}.{kind}" for norm in norms for kind in ("weight", "bias")}
    assert not any(own[name].requires_grad for name in copied)
    assert all(live[name].requires_grad for name in copied)
    buffers = dict(adapter.network.named_buffers())
    held = {name: buffer for name, buffer in anchor.network.named_buffers() if name.endswith(BUFFERS)}
    assert len(held) >= 5 * len(BUFFERS)
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in held.items())
    assert not {b.data_ptr() for b in held.values()} & {b.data_ptr() for b in buffers.values()}


def test_early_norms_follow_the_batch_and_late_ones_what_was_attached() -> None:
    """Layer by layer on a fixed network: of what enters, the batch's statistics or the trained ones are taken out."""
    live = sicl.Source().attach(sicl.load_model("demo")).network
    before = {name: value.clone() for name, value in live.state_dict().items()}
    anchor, trained = Anchor(live), batch_norms(sicl.load_model("demo"))
    checked: list[str] = []

    def check(number: int, x: Tensor, out: Tensor) -> None:
        norm = trained[number]
        late = number >= 15
        mean, variance = (norm.running_mean, norm.running_var) if late else (None, None)
        expected = F.batch_norm(x, mean, variance, norm.weight, norm.bias, not late, 0.0, norm.eps)
        torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)
        checked.append("late" if late else "early")

    for number, norm in enumerate(batch_norms(anchor.network)):
        norm.register_forward_hook(lambda _, args, out, number=number: check(number, args[0], out))
    for start in (0, 32):
        anchor.logits(_images(start))
    assert checked == 2 * (15 * ["early"] + 5 * ["late"])
    assert all(torch.equal(value, before[name]) for name, value in live.state_dict().items())
    assert not any(norm.training for norm in batch_norms(live))


@pytest.mark.parametrize("method", [ROTTA, SOTTA], ids=["replaced", "written in place"])
def test_running_statistics_that_move_are_not_the_anchors(method: Method) -> None:
    """RoTTA replaces them, SoTTA writes into them: the anchor's are still those its parameters were trained with."""
    adapter = method.attach(sicl.load_model("demo"))
    anchor = Anchor(adapter.network)
    ids = [id(norm.running_mean) for norm in batch_norms(adapter.network)]
    _adapted(adapter)
    replaced = [id(norm.running_mean) for norm in batch_norms(adapter.network)] != ids
    assert replaced is (method is ROTTA)
    layers = zip(*(batch_norms(net) for net in (anchor.network, adapter.network, sicl.load_model("demo"))))
    for number, (own, live, trained) in enumerate(layers):
        for name in BUFFERS[:2]:
            assert not torch.allclose(getattr(live, name), getattr(trained, name), atol=1e-4)
            held = getattr(own, name)
            # An early norm needs none.
            if number >= 15 or held is not None:
                assert torch.equal(held, getattr(trained, name))
                assert held.data_ptr() != getattr(live, name).data_ptr()
        assert statistics_of(own) == ("running" if number >= 15 else "batch")
        assert torch.equal(own.weight, trained.weight)


def test_it_votes_as_the_network_that_never_moved() -> None:
    """Its answers about a label are those of one that is so by itself; the adapted network's are not."""
    options: dict[str, Any] = {"members": ("mirror", "crop"), "temper": False, "engine": "plain"}
    moved = sicl.SICL(**options).attach(sicl.Tent(lr=0.05).attach(sicl.load_model("demo")))
    model = sicl.load_model("demo")
    for norm in batch_norms(model)[:15]:
        norm.running_mean = norm.running_var = None
    stays = sicl.SICL(witnesses=("network",), **options).attach(model)
    for i in range(3):
        out, stayed = moved(_images(32 * i)), stays(_images(32 * i))
    same = out.labels == stayed.labels
    assert 5 <= int(same.sum()) < len(same)
    for name in ("mirror", "crop"):
        expected = stayed.signals[f"{name}_invariance"][same]
        assert torch.allclose(out.signals[f"anchor_{name}"][same], expected, atol=1e-4)
        assert not torch.allclose(out.signals[f"{name}_invariance"][same], expected, atol=1e-2)


def test_it_is_a_witness_where_it_may_say_something_else() -> None:
    """If the network adapts, or has batch norms with statistics of their own."""
    bare = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False))
    for method, network, adapts, differs in (
        (sicl.Source(), small_vit(), False, False),
        (sicl.Source(), bare, False, False),
        (sicl.Source(), small_net(), False, True),
        (sicl.BatchNorm(), small_net(), False, True),
        (sicl.Tent(), small_vit(), True, True),
        (sicl.Tent(), small_net(), True, True),
    ):
        anchor = Anchor(method.attach(network).network)
        assert (anchor.adapts, anchor.differs) == (adapts, differs), method


class _WithRelu(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


class _OfItsOwn(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        assert self.running_mean is not None
        return x - self.running_mean.view(1, -1, 1, 1)


def test_a_layer_that_does_more_than_normalise_keeps_what_it_does() -> None:
    """Robust norms are torch's in evaluation mode; one with an activation is not."""
    robust = batch_norms(ROTTA.attach(small_net()).network)[0]
    assert only_normalises(robust)
    assert only_normalises(nn.BatchNorm2d(4).eval())
    acting = _WithRelu(4).eval()
    assert not only_normalises(acting)
    x = 3 + torch.randn(8, 4, 5, 5, generator=torch.Generator().manual_seed(0))
    found = Anchor(nn.Sequential(nn.Conv2d(4, 4, 1), acting)).network[1](x).detach()
    torch.testing.assert_close(found, F.batch_norm(x, None, None, training=True).relu())


def test_a_layer_that_does_not_use_torchs_norm_is_left_at_its_statistics() -> None:
    """What it would do with those of a batch is not known; they are copied as late ones are."""
    live = nn.Sequential(nn.Conv2d(4, 4, 1), _OfItsOwn(4), nn.BatchNorm2d(4)).eval()
    anchor = Anchor(live).network
    assert early_norms(live) == batch_norms(live)
    assert [statistics_of(norm) for norm in batch_norms(anchor)] == ["running", "batch"]
    assert torch.equal(anchor[1].running_mean, live[1].running_mean)
    assert anchor[1].running_mean is not live[1].running_mean


@pytest.mark.parametrize("method", [sicl.Tent(predict="after"), ROTTA, SOTTA], ids=["tent", "rotta", "sotta"])
def test_the_live_network_is_left_as_it_was(method: Method) -> None:
    """Steps with SICL beside them end in the same parameters and buffers as steps alone."""
    alone, watched = (method.attach(sicl.load_model("demo")) for _ in range(2))
    trusted = sicl.SICL().attach(watched)
    for i in range(2):
        alone(_images(32 * i))
        trusted(_images(32 * i))
    for (name, a), b in zip(alone.network.state_dict().items(), watched.network.state_dict().values()):
        assert torch.equal(a, b), name


def _on_cats() -> tuple[float, float]:
    """On clean cats, of a network that does not adapt: SICL's calibration error, and the anchor's mean answer."""
    data = load_dataset("demo")
    cats = data.subset(np.flatnonzero(data.labels == 3))
    pixels = torch.from_numpy(cats.images[:].copy()).permute(0, 3, 1, 2).float() / 255
    trusted = sicl.SICL().attach(sicl.load_model("demo"))
    outs = [trusted(part) for part in pixels.split(64)]
    right = torch.cat([out.labels for out in outs]) == 3
    answers = torch.cat([out.signals["anchor_mirror"] for out in outs])
    error = expected_calibration_error(torch.cat([out.confidence for out in outs]), right)
    return float(error), float(answers.mean())


def test_a_stream_of_one_class_is_not_doubted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Late norms by the statistics of cats alone take out what a cat is: with all by the batch the anchor strays."""
    error, answers = _on_cats()
    monkeypatch.setattr(anchor_module, "early_norms", batch_norms)
    _, by_the_batch = _on_cats()
    assert error < 0.1
    assert answers > by_the_batch + 0.2
