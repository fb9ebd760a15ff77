"""Tracing, folding and fusing: the same logits from fewer kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_networks import build, images
from torch import Tensor

from sicl.engine.kernels.vendor import Kernels, kernels_for
from sicl.engine.norms import batch_norms, grouped_batch_norm
from sicl.engine.split import Split
from sicl.engine.trace import Traced
from sicl.engine.twin import CannotTwin, Twin


def traced_of(
    name: str, *, batchwise: bool, frozen: bool, groups: int = 2
) -> tuple[Split, Tensor, Traced, Tensor]:
    """(live split, stacked features, traced pass, the plain logits)."""
    model = build(name)
    for norm in batch_norms(model):
        norm.train(batchwise)
    split = Split(model, statistics="frozen" if frozen else None)
    begun = split.run(images(6))
    stacked = torch.cat([begun.features * (1 + 0.1 * g) for g in range(groups)])
    expected = split.resume(stacked, begun, groups=groups)
    twin = Twin(split, torch.float32)
    moments = twin.stage()
    if twin.records:
        record = Traced(twin, begun.features, 1, records=True)
        record.load(moments)
        record(begun.features)
        moments = twin.moments.clone()
    traced = Traced(twin, stacked, groups)
    traced.load(moments)
    return split, stacked, traced, expected


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "vgg", "vit", "functional", "positions", "output"])
@pytest.mark.parametrize(("batchwise", "frozen"), [(False, True), (True, True), (True, False)])
def test_a_traced_pass_gives_the_networks_logits(name: str, batchwise: bool, frozen: bool) -> None:
    """Plain kernels and fused ones, running, frozen and batch statistics."""
    _, stacked, traced, expected = traced_of(name, batchwise=batchwise, frozen=frozen)
    assert torch.allclose(traced(stacked), expected, atol=1e-4)
    traced.settle(stacked)
    assert traced.notes == []
    assert torch.allclose(traced(stacked), expected, atol=1e-4)


def test_fixed_norms_disappear_into_convolutions() -> None:
    """No norm is left where each follows a convolution."""
    _, _stacked, traced, _ = traced_of("resnet18", batchwise=True, frozen=True)
    targets = [str(node.target) for node in traced.module.graph.nodes]
    assert not [t for t in targets if "norm" in t]
    assert sum("convolution" in t for t in targets) == 15


def test_a_shortcut_leaves_its_bias_to_the_convolution_it_is_added_to() -> None:
    """Folded, both have a bias; two additions of one are one."""
    if kernels_for(torch.device("cpu")) is None:
        pytest.skip("no oneDNN")
    _, stacked, traced, expected = traced_of("resnet18", batchwise=False, frozen=True)
    traced.settle(stacked)
    alone = [n for n in traced._with_fused_kernels().graph.nodes if "aten.convolution" in str(n.target)]
    assert [node.args[2] for node in alone] == [None] * 3
    assert torch.allclose(traced(stacked), expected, atol=1e-4)


def test_additions_and_activations_disappear_into_convolutions_where_the_backend_can() -> None:
    """Every ReLU after layer1 is the end of a convolution."""
    if kernels_for(torch.device("cpu")) is None:
        pytest.skip("no oneDNN")
    _, stacked, traced, _ = traced_of("resnet18", batchwise=False, frozen=True)
    traced.settle(stacked)
    fused = traced._with_fused_kernels()
    targets = [str(node.target) for node in fused.graph.nodes]
    assert not [t for t in targets if "aten.relu" in t or "aten.add.Tensor" in t]


def test_norms_of_stacked_batches_take_what_follows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a kernel for it (here a stand-in), norm, addition and ReLU are one call."""
    calls: list[tuple[bool, bool]] = []

    def norm(
        x: Tensor, groups: int, weight: Any, bias: Any, eps: float, *, other: Any, relu: bool, keep: Any
    ) -> Tensor:
        assert keep is None
        calls.append((other is not None, relu))
        out = grouped_batch_norm(x, groups, weight, bias, eps)
        out = out if other is None else out + other
        return out.relu() if relu else out

    own = kernels_for(torch.device("cpu"))
    if own is None:
        pytest.skip("no oneDNN")
    monkeypatch.setattr("sicl.engine.trace.kernels_for", lambda _d: Kernels(own.relu, own.add_relu, norm))
    _, stacked, traced, expected = traced_of("resnet18", batchwise=True, frozen=False)
    traced.settle(stacked)
    calls.clear()
    assert torch.allclose(traced(stacked), expected, atol=1e-4)
    assert sorted(calls) == [(False, False)] * 3 + [(False, True)] * 6 + [(True, True)] * 6


def test_load_follows_the_live_network() -> None:
    """Folded weights are those of the network as it stands."""
    split, stacked, traced, _ = traced_of("resnet18", batchwise=False, frozen=True)
    with torch.no_grad():
        for parameter in split.network.parameters():
            parameter.mul_(0.9)
        split.network.layer2[0].bn1.running_mean.add_(0.2)
    begun = split.run(images(6))
    traced.load(traced.twin.stage())
    assert torch.allclose(traced(stacked), split.resume(stacked, begun, groups=2), atol=1e-4)


def test_kernels_that_give_something_else_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fused kernel is believed only after it gave the plain one's logits."""
    wrong = Kernels(lambda x, w, b, *rest: torch.convolution(x, w, b, *rest[:6]) * 3, lambda *a: a[0])
    monkeypatch.setattr("sicl.engine.trace.kernels_for", lambda _device: wrong)
    _, stacked, traced, expected = traced_of("resnet18", batchwise=False, frozen=True)
    traced.settle(stacked)
    assert torch.allclose(traced(stacked), expected, atol=1e-4)
    assert "no fused kernels" in traced.notes[0]


def test_a_bypassed_cut_has_no_twin() -> None:
    """What needs whole passes cannot be traced."""
    model = build("skipping")
    split = Split(model)
    with pytest.warns(UserWarning, match="cannot be resumed"):
        split.run(images(6))
    with pytest.raises(CannotTwin, match="bypasses"):
        Twin(split, torch.float32)


def test_the_head_stays_in_float32() -> None:
    """Logits are not rounded to eight bits."""
    model = build("resnet18")
    split = Split(model)
    split.run(images(6))
    twin = Twin(split, torch.bfloat16)
    assert twin.network.fc.weight.dtype == torch.float32
    assert twin.network.layer2[0].conv1.weight.dtype == torch.bfloat16
    assert model.layer2[0].conv1.weight.dtype == torch.float32
