"""Captures: when a function is captured, replayed, captured anew, or left alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import stand_in
import torch
from engine_networks import build
from stand_in import StandIn
from torch import Tensor, nn

from sicl.engine.engine import Engine, EngineOptions
from sicl.engine.graphs import Graphs, difference, effect, is_capturing
from sicl.engine.norms import batch_norms
from sicl.engine.split import Split
from sicl.engine.trees import own_copy
from sicl.engine.variants import StyleVariants, Votes


@pytest.fixture(autouse=True)
def _graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in.use(monkeypatch)


@dataclass
class Seen:
    """What a function was called with, and did."""

    effects: int = 0
    calls: int = 0

    def function(self, tensors: list[Tensor]) -> dict[str, Tensor]:
        self.calls += 1
        effect(self._count)
        return {"twice": 2 * tensors[0], "one": torch.ones_like(tensors[0])}

    def _count(self) -> None:
        self.effects += 1


def test_a_function_runs_is_captured_and_is_replayed() -> None:
    """The first call of a key runs it, the second captures it; effects happen once a call; outputs are the caller's."""
    captures, seen = Graphs().captures("it", []), Seen()
    found = [captures("key", seen.function, [torch.full((2,), v)])["twice"] for v in (1.0, 2.0, 3.0, 4.0)]
    assert [float(f[0]) for f in found] == [2.0, 4.0, 6.0, 8.0]
    assert (StandIn.made, captures.captured, seen.effects) == (1, 1, 4)
    captures("other", seen.function, [torch.zeros(3)])
    assert (StandIn.made, captures.captured) == (1, 1)


def test_tensors_that_moved_are_read_where_they_are() -> None:
    """The graphs are dropped, and made anew from the second call on; what keeps moving is left alone."""
    layer, graphs = nn.Linear(2, 2), Graphs()
    captures = graphs.captures("it", [layer._parameters])

    def call() -> Tensor:
        return captures("key", lambda t: layer(t[0]).detach(), [torch.ones(1, 2)])

    call()
    call()
    layer.weight = nn.Parameter(torch.zeros(2, 2))
    assert torch.equal(call()[0], layer.bias)
    assert captures.captured == 0
    call()
    assert StandIn.made == 2
    for value in range(6):
        layer.weight = nn.Parameter(torch.full((2, 2), float(value)))
        call()
    assert "keep moving" in captures.problem
    assert graphs.notes == [captures.problem]


@pytest.mark.parametrize("value", [0.9, float("nan")])
def test_a_graph_that_gives_something_else_is_not_believed(value: float) -> None:
    """Also where that is not a number; the function runs as it is from then on."""
    captures, calls = Graphs().captures("it", []), []

    def function(tensors: list[Tensor]) -> Tensor:
        calls.append(1)
        # The run and the rehearsal are right, what was captured is not.
        return tensors[0] if len(calls) <= 2 else torch.full_like(tensors[0], value)

    for number in (0.1, 0.2, 0.3):
        captures("key", function, [torch.full((3,), number)])
    assert captures.captured == 0
    assert "off by" in captures.problem


def test_numbers_that_are_none_do_not_end_the_graphs() -> None:
    """Nothing can be compared with them; the next batch is captured."""
    captures = Graphs().captures("it", [])
    for number in (0.1, float("nan"), 0.3, 0.4):
        captures("key", lambda t: t[0] + 1, [torch.full((3,), number)])
    assert (captures.captured, captures.problem) == (1, "")


def test_running_out_of_memory_gives_all_graphs_back() -> None:
    """The call goes on as it is; a second time, capturing is given up."""
    graphs = Graphs()
    other, captures = graphs.captures("another", []), graphs.captures("it", [])
    for _ in range(2):
        other("key", lambda t: t[0], [torch.ones(1)])

    def hungry(tensors: list[Tensor]) -> Tensor:
        if is_capturing():
            raise RuntimeError("CUDA out of memory. Tried to allocate")
        return tensors[0]

    for _ in range(2):
        assert float(captures("key", hungry, [torch.ones(1)])) == 1.0
    assert (other.captured, captures.problem) == (0, "")
    for _ in range(2):
        assert float(captures("key", hungry, [torch.ones(1)])) == 1.0
    assert "out of memory" in captures.problem


def test_noise_goes_on_as_if_nothing_had_been_captured() -> None:
    """Rehearsing, capturing and comparing draw nothing."""

    def run(captures: Any, generator: torch.Generator) -> list[float]:
        def function(tensors: list[Tensor]) -> Tensor:
            return tensors[0] + torch.randn(2, generator=generator)

        return [float(captures("key", function, [torch.zeros(2)])[0]) for _ in range(4)]

    generator = torch.Generator().manual_seed(0)
    expected = run(lambda _key, function, inputs: function(inputs), generator)
    generator.manual_seed(0)
    assert run(Graphs().captures("it", [], generator=generator), generator) == expected


def test_graphs_inside_a_graph_are_part_of_it() -> None:
    """What is captured alone elsewhere runs in line."""
    graphs = Graphs()
    inner, outer = graphs.captures("inner", []), graphs.captures("outer", [])

    def function(tensors: list[Tensor]) -> Tensor:
        return inner("key", lambda t: t[0] + 1, tensors) * 2

    found = [float(outer("key", function, [torch.full((1,), v)])) for v in (0.0, 1.0, 2.0, 3.0)]
    assert found == [2.0, 4.0, 6.0, 8.0]
    assert (inner.captured, outer.captured) == (0, 1)


def test_copies_of_values_share_nothing() -> None:
    """Dataclasses, mappings and sequences; a tensor that occurs twice is one tensor again."""
    tensor = torch.ones(2)
    value = {"votes": Votes(tensor, tensor, tensor, tensor), "list": [tensor, 3]}
    copy = own_copy(value)
    tensor.zero_()
    assert float(copy["votes"].hard.sum()) == 2.0
    assert copy["votes"].hard is copy["votes"].soft is copy["list"][0]
    assert difference(copy, value) > 1
    other = EngineOptions()
    assert own_copy([other, tensor])[0] is other


def _style(features: Tensor, seed: int = 0) -> StyleVariants:
    shape = (4, *features.shape[:2])
    noise = torch.randn((2, *shape), generator=torch.Generator().manual_seed(seed))
    return StyleVariants(1 + 0.2 * noise[0], 0.2 * noise[1])


@pytest.mark.parametrize("statistics", [None, "batch", "frozen"])
@pytest.mark.parametrize("batchwise", [False, True])
def test_an_engine_votes_by_graphs_as_without_them(statistics: Any, batchwise: bool) -> None:
    """While the network's parameters and running statistics change, in place and by replacement."""

    def run(make: Callable[[nn.Module], Engine]) -> tuple[list[Tensor], Engine]:
        model = build("resnet18")
        for norm in batch_norms(model):
            norm.train(batchwise).track_running_stats = not batchwise
        engine, out = make(model), []
        for step in range(5):
            batch = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(step))
            begun = engine.begin(batch)
            out.append(engine.votes(begun, _style(begun.features, step), torch.arange(6) % 5, 0.9).soft)
            out.append(engine.logits(begun))
            with torch.no_grad():
                model.layer2[0].conv1.weight.mul_(1.05)
                model.layer3[0].bn1.weight.add_(0.02)
                model.layer2[0].bn1.running_mean = model.layer2[0].bn1.running_mean + 0.01
        return out, engine

    def plain(model: nn.Module) -> Engine:
        return Engine(Split(model, statistics=statistics), EngineOptions(engine="plain"))

    def graph(model: nn.Module) -> Engine:
        options = EngineOptions(engine="graph", precision="float32")
        return Engine(Split(model, statistics=statistics), options)

    expected, _ = run(plain)
    found, engine = run(graph)
    assert StandIn.made >= 2
    assert engine.name == "graph float32"
    assert engine.rows_sent == 5 * 4 * 6
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)
