"""The anchor: the parameters of the time of attachment, the live network's statistics, a witness."""

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
    _adapted(adapter)
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


def test_it_votes_as_the_network_that_never_moved() -> None:
    """Its answers about a label are those of one that never adapted; the network's own are not."""
    options = {"members": ("mirror", "crop"), "temper": False, "relaxation": "none", "engine": "plain"}
    adapter = sicl.Tent(lr=0.05).attach(sicl.load_model("demo"))
    moved = sicl.SICL(**options).attach(adapter)
    stays = sicl.SICL(**options).attach(sicl.BatchNorm().attach(sicl.load_model("demo")))
    for i in range(3):
        out, stayed = moved(_images(32 * i)), stays(_images(32 * i))
    same = out.labels == stayed.labels
    assert 5 <= int(same.sum()) < len(same)
    for name in ("mirror", "crop"):
        expected = stayed.signals[f"{name}_invariance"][same]
        assert torch.allclose(out.signals[f"anchor_{name}"][same], expected, atol=1e-4)
        assert not torch.allclose(out.signals[f"{name}_invariance"][same], expected, atol=1e-2)


def test_running_statistics_are_used_by_the_parameters_they_belong_to() -> None:
    """RoTTA's running statistics fit the network that adapted with them: the anchor is no witness there."""
    trusted = sicl.SICL(variants=2).attach(sicl.Rotta(update_every=16).attach(sicl.load_model("demo")))
    assert not [name for name in trusted(_images()).signals if name.startswith("anchor")]


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
