"""Norm modes: which statistics a network normalises with while a block runs, and that nothing is left behind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from engine_networks import build, images
from torch import Tensor, nn

from sicl.engine.norms import (
    batch_norms,
    batch_statistics,
    can_group,
    early_norms,
    frozen_statistics,
    norm_layers,
    protected_statistics,
    record_statistics,
    running_statistics,
)
from sicl.errors import UnsupportedModelError

Mode = Callable[[nn.Module], AbstractContextManager[object]]
MODES: dict[str, Mode] = {
    "running": running_statistics,
    "batch": batch_statistics,
    "grouped": lambda model: batch_statistics(model, groups=2),
    "frozen": lambda model: frozen_statistics(
        model, {m: (torch.zeros(m.num_features), torch.ones(m.num_features)) for m in batch_norms(model)}
    ),
    "record": record_statistics,
    "protected": protected_statistics,
}


def snapshot(model: nn.Module) -> list[object]:
    """Everything a mode could have changed: values, objects, flags, instance attributes and hooks."""
    seen: list[object] = [v.clone() for v in model.state_dict().values()]
    for module in model.modules():
        seen += [id(b) for b in module._buffers.values()] + [id(p) for p in module._parameters.values()]
        seen += [module.training, getattr(module, "momentum", 0), getattr(module, "track_running_stats", 0)]
        seen += [sorted(module.__dict__), len(module._forward_hooks), len(module._forward_pre_hooks)]
    return seen


def same(first: list[object], second: list[object]) -> bool:
    """Compare two snapshots."""
    return len(first) == len(second) and all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b
        for a, b in zip(first, second)
    )


@pytest.mark.parametrize(
    ("count", "early"), [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (8, 6), (20, 15), (53, 40)]
)
def test_three_quarters_of_the_batch_norms_are_early(count: int, early: int) -> None:
    """The first in definition order, rounded; norms of other kinds do not count."""
    layers = [module for _ in range(count) for module in (nn.BatchNorm2d(2), nn.GroupNorm(1, 2))]
    model = nn.Sequential(nn.LayerNorm(2), nn.Sequential(*layers), nn.InstanceNorm2d(2))
    found = early_norms(model)
    assert found == batch_norms(model)[:early]
    assert len(batch_norms(model)) == count


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("fails", [False, True])
def test_every_mode_restores_what_it_found(mode: str, training: bool, fails: bool) -> None:
    """Buffers, flags, momentum, forwards and hooks are as before, also after an exception."""
    model = build("resnet18")
    for module in batch_norms(model):
        module.train(training)
    before = snapshot(model)
    with pytest.raises(ZeroDivisionError) if fails else torch.no_grad(), MODES[mode](model):
        model(images())
        if fails:
            raise ZeroDivisionError
    assert same(before, snapshot(model))


def test_running_mode_equals_eval() -> None:
    """Whatever the flags say, the running statistics are used."""
    model = build("resnet18")
    expected = model(images())
    model.train()
    with running_statistics(model):
        assert torch.equal(model(images()), expected)


def test_batch_mode_equals_train() -> None:
    """The batch's own statistics are used, though the network is in eval mode."""
    model = build("resnet18")
    expected = copy.deepcopy(model).train()(images())
    with batch_statistics(model):
        assert torch.equal(model(images()), expected)


def test_grouped_batch_statistics_equal_each_group_alone() -> None:
    """Three stacked batches are normalised as if each had come alone."""
    model = build("resnet18")
    stacked = torch.cat([images(5, seed=s) * (1 + s) for s in range(3)])
    with torch.no_grad(), batch_statistics(model):
        alone = torch.cat([model(part) for part in stacked.chunk(3)])
    with torch.no_grad(), batch_statistics(model, groups=3):
        assert torch.allclose(model(stacked), alone, atol=2e-5)


class Shifted(nn.BatchNorm2d):
    """Normalises as torch does, and does something besides."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class ByHand(nn.BatchNorm2d):
    """Normalises in a way of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean((0, 2, 3), keepdim=True)


class NormAct(nn.BatchNorm2d):
    """A batch norm with its activation, written as timm writes its `BatchNormAct2d`."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.drop, self.act = nn.Identity(), nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        training = self.training or (self.running_mean is None and self.running_var is None)
        use = not self.training or self.track_running_stats
        mean, variance = (b if use else None for b in (self.running_mean, self.running_var))
        momentum = 0.0 if self.momentum is None else self.momentum
        x = nn.functional.batch_norm(x, mean, variance, self.weight, self.bias, training, momentum, self.eps)
        return self.act(self.drop(x))


@pytest.mark.parametrize("kind", [Shifted, NormAct])
@pytest.mark.parametrize("training", [False, True])
def test_subclasses_that_do_more_than_normalise_are_grouped_too(
    kind: type[nn.BatchNorm2d], training: bool
) -> None:
    """What they do besides is done; each group has its own statistics."""
    layer = kind(3).train(training)
    stacked = torch.cat([images(5, seed=s) * (1 + s) for s in range(3)])
    with torch.no_grad(), batch_statistics(layer):
        alone = torch.cat([layer(part) for part in stacked.chunk(3)])
    with torch.no_grad(), batch_statistics(layer, groups=3):
        assert torch.allclose(layer(stacked), alone, atol=2e-5)
    assert can_group(layer)


def test_grouping_refuses_a_batch_norm_that_does_not_call_torchs() -> None:
    """What cannot be rewritten must not be rewritten silently."""
    model = nn.Sequential(ByHand(3))
    assert not can_group(model[0])
    with (
        pytest.raises(UnsupportedModelError, match="ByHand has its own forward"),
        batch_statistics(model, groups=2),
    ):
        model(images())


def test_recorded_statistics_are_the_biased_moments_of_the_input() -> None:
    """Mean and biased variance over batch and space, computed by hand in float64."""
    norm = nn.BatchNorm2d(3).train()
    x = images(5) * 3 + 1
    with record_statistics(norm) as recorded:
        norm(x)
    mean, variance = recorded[norm]
    exact = x.double().transpose(0, 1).flatten(1)
    assert torch.allclose(mean.double(), exact.mean(1), atol=1e-6)
    assert torch.allclose(variance.double(), exact.var(1, correction=0), atol=1e-6)


@pytest.mark.parametrize("kind", [nn.BatchNorm2d, Shifted, NormAct])
@pytest.mark.parametrize("training", [False, True])
def test_layers_without_running_statistics_are_recorded_as_they_stand(
    kind: type[nn.BatchNorm2d], training: bool
) -> None:
    """Whatever a subclass does besides: its statistics are the batch's, and repeat the pass."""
    layer = kind(3).train(training)
    layer.running_mean = layer.running_var = layer.num_batches_tracked = None
    x = images(5) * 3 + 1
    with torch.no_grad(), record_statistics(layer) as recorded:
        expected = layer(x)
    torch.testing.assert_close(recorded[layer][1], x.var((0, 2, 3), correction=0))
    with torch.no_grad(), frozen_statistics(layer, recorded):
        assert torch.allclose(layer(x), expected, atol=1e-5)


def test_frozen_statistics_repeat_the_recorded_pass() -> None:
    """With what a batch-statistics pass normalised with, each row alone gives the same logits again."""
    model = build("resnet18").train()
    with torch.no_grad(), record_statistics(model) as recorded:
        expected = model(images())
    with torch.no_grad(), frozen_statistics(model, recorded):
        rows = torch.cat([model(row[None]) for row in images()])
    assert torch.allclose(rows, expected, atol=1e-5)


def test_recording_in_eval_mode_gives_the_running_statistics() -> None:
    """A layer that normalises with its buffers says so."""
    model = build("resnet18")
    with record_statistics(model) as recorded:
        model(images())
    assert torch.equal(recorded[model.bn1][0], model.bn1.running_mean)
    assert torch.equal(recorded[model.bn1][1], model.bn1.running_var)


def test_norm_layers_are_found_in_definition_order() -> None:
    """Batch, layer, group and instance norms count."""
    model = nn.Sequential(
        nn.GroupNorm(1, 2), nn.Linear(2, 2), nn.LayerNorm(2), nn.InstanceNorm2d(2), nn.BatchNorm1d(2)
    )
    assert [name for name, _ in norm_layers(model)] == ["0", "2", "3", "4"]
