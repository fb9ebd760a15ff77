"""The anchor: the parameters of the time of attachment, the live network's statistics, a vote on content."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import sicl
from sicl.adapt import Adapter
from sicl.calibrate.sicl.anchor import Anchor
from sicl.data import load_dataset, source_data


def _images(start: int = 0) -> Tensor:
    return source_data(load_dataset("demo"), n=96).images[start : start + 32]


def _adapted(adapter: Adapter, batches: int = 2) -> Adapter:
    for i in range(batches):
        adapter(_images(32 * i))
    return adapter


def test_it_says_what_the_network_said_before_it_adapted() -> None:
    """After updates its logits are those of a network that never had any."""
    adapter = sicl.Tent(lr=0.05).attach(sicl.load_model("demo"))
    anchor = Anchor(adapter.network)
    assert not anchor.moved
    _adapted(adapter)
    assert anchor.moved
    never = sicl.BatchNorm().attach(sicl.load_model("demo"))
    assert torch.allclose(anchor.logits(_images(64)), never(_images(64)), atol=1e-5)
    assert not torch.allclose(adapter.network(_images(64)), never(_images(64)), atol=1e-2)


def test_it_copies_only_what_may_adapt() -> None:
    """Convolutions are the live network's own tensors; affine parameters are not, and take no gradient."""
    adapter = sicl.Tent().attach(sicl.load_model("demo"))
    anchor = Anchor(adapter.network)
    live, own = (dict(net.named_parameters()) for net in (adapter.network, anchor.network))
    copied = {name for name in live if live[name] is not own[name]}
    norms = {n for n, m in adapter.network.named_modules() if isinstance(m, nn.BatchNorm2d)}
    assert copied == {f"{norm}.{kind}" for norm in norms for kind in ("weight", "bias")}
    assert not any(own[name].requires_grad for name in copied)
    assert all(live[name].requires_grad for name in copied)


def test_it_follows_the_live_statistics() -> None:
    """RoTTA replaces its running statistics by new tensors; the attached network uses the newest."""
    adapter = sicl.Rotta(update_every=16).attach(sicl.load_model("demo"))
    anchor = Anchor(adapter.network)
    _adapted(adapter)
    live = next(m for m in adapter.network.modules() if hasattr(m, "running_mean"))
    own = next(m for m in anchor.follow().modules() if hasattr(m, "running_mean"))
    assert own is not live
    assert own.running_mean is live.running_mean


def test_content_is_judged_by_the_network_as_attached() -> None:
    """The content signal of a network that moved far is that of one that never moved; the style signal is not."""
    options = {"noise": "independent", "engine": "plain", "temper": False, "relaxation": "none"}
    adapter = sicl.Tent(lr=0.05).attach(sicl.load_model("demo"))
    trusted = {by: sicl.SICL(content_by=by, **options) for by in ("attached", "adapted")}
    panel = sicl.Panel(trusted, adapter)
    never = sicl.SICL(**options).attach(sicl.BatchNorm().attach(sicl.load_model("demo")))
    for i in range(3):
        moved, stayed = panel(_images(32 * i)), never(_images(32 * i))
    same = moved["attached"].labels == stayed.labels
    assert 5 <= int(same.sum()) < len(same)
    content = {by: out.signals["content_invariance"][same] for by, out in moved.items()}
    expected = stayed.signals["content_invariance"][same]
    assert torch.allclose(content["attached"], expected, atol=1e-4)
    assert not torch.allclose(content["adapted"], expected, atol=1e-2)
    style = moved["attached"].signals["style_invariance"][same]
    assert not torch.allclose(style, stayed.signals["style_invariance"][same], atol=1e-2)


def test_who_judges_makes_no_difference_where_nothing_adapts() -> None:
    """A fixed network is the network as attached."""
    panel = {by: sicl.SICL(content_by=by, precision="float32") for by in ("attached", "adapted")}
    out = sicl.Panel(panel, sicl.Source().attach(sicl.load_model("demo")))(_images())
    assert torch.allclose(out["attached"].confidence, out["adapted"].confidence, atol=1e-4)


def test_running_statistics_are_used_by_the_parameters_they_belong_to() -> None:
    """RoTTA's running statistics: the network that adapted judges content, until the batch's own take over."""
    adapter = sicl.Rotta(update_every=16, lr=0.05, nu=0.5).attach(sicl.load_model("demo"))
    options = {"precision": "float32", "temper": False, "relaxation": "none", "statistics": "network"}
    trusted = {by: sicl.SICL(content_by=by, **options) for by in ("attached", "adapted")}
    panel = sicl.Panel(trusted, adapter)
    for i in range(2):
        out = panel(_images(32 * i))
    content = [out[by].signals["content_invariance"] for by in trusted]
    assert torch.allclose(*content, atol=1e-4)
    calibration = panel.calibrations["attached"]
    asked = (calibration.questions["content"], calibration.renewed["content"], calibration.renewed["style"])
    networks = [question.engine.split.network for question in asked]
    assert networks[0] is networks[2] is adapter.network
    assert networks[1] is calibration.anchor.network


def test_the_live_network_is_left_as_it_was() -> None:
    """Steps with SICL beside them end in the same parameters and buffers as steps alone."""
    for method in (sicl.Tent(predict="after"), sicl.Rotta(update_every=16)):
        alone, watched = (method.attach(sicl.load_model("demo")) for _ in range(2))
        trusted = sicl.SICL().attach(watched)
        for i in range(2):
            alone(_images(32 * i))
            trusted(_images(32 * i))
        for (name, a), b in zip(alone.network.state_dict().items(), watched.network.state_dict().values()):
            assert torch.equal(a, b), name
