"""Whole looks: logits by an engine, networks that bypass the cut, and when a captured look may be replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from calibrate_networks import SmallNet, images
from torch import Tensor, nn

import sicl
from sicl.calibrate.sicl import calibration as _invariance
from sicl.calibrate.sicl import look as _look
from sicl.calibrate.sicl.look import Look, Looks
from sicl.engine.engine import Engine, EngineOptions
from sicl.engine.graphs import Lanes
from sicl.engine.norms import batch_norms
from sicl.engine.split import Split
from sicl.engine.variants import Votes


class Bypassed(SmallNet):
    """Something of the images reaches the logits past the cut."""

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = super().forward(images)
        return logits + images[:, :, :, :2].mean(dim=(1, 2, 3)).view(-1, 1) * torch.arange(4.0)


def _batchwise(network: nn.Module) -> nn.Module:
    for norm in batch_norms(network):
        norm.train().track_running_stats = False
        norm.running_mean = norm.running_var = None
    return network


@pytest.mark.parametrize("way", ["plain", "twin", "fused"])
@pytest.mark.parametrize("norm", ["batch", "frozen"])
@pytest.mark.parametrize("prepare", [nn.Module.eval, _batchwise])
def test_an_engine_gives_the_networks_logits(
    way: str, norm: str, prepare: Callable[[nn.Module], nn.Module]
) -> None:
    """Of the batch it has begun, and of another view where statistics do not depend on the batch."""
    network = prepare(SmallNet())
    engine = Engine(Split(network), EngineOptions(engine=way, norm=norm, precision="float32"))
    with torch.no_grad():
        engine.begin(images(12))
        torch.testing.assert_close(engine.logits(), network(images(12)), atol=1e-4, rtol=1e-4)
        if norm == "batch" or not engine.split.batch_dependent():
            view = images(12).flip(-1)
            torch.testing.assert_close(engine.logits(view), network(view), atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:.*cannot be resumed")
def test_a_bypassed_cut_is_asked_about_other_images_by_whole_passes() -> None:
    """The mirror's vote is the network's own probability for the mirrored images."""
    network = Bypassed().eval()
    spec = sicl.SICL(members=("mirror",), relaxation="none", temper=False, statistics="network")
    out = spec.attach(network)(images(16))
    with torch.no_grad():
        mirrored = network(images(16).flip(-1)).softmax(dim=1).gather(1, out.labels[:, None])[:, 0]
    torch.testing.assert_close(out.confidence, mirrored, atol=1e-5, rtol=0)


def test_the_mirror_alone_has_nothing_to_settle() -> None:
    """An adaptive budget without variants asks the mirror and stops."""
    fixed, adaptive = (
        sicl.SICL(members=("mirror",), variants=v).attach(sicl.load_model("demo"))(
            torch.rand(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        )
        for v in (8, "adaptive")
    )
    assert torch.equal(fixed.confidence, adaptive.confidence)


@pytest.mark.parametrize("variants", [4, "adaptive"])
def test_votes_are_read_when_all_that_computes_them_has_been_waited_for(
    monkeypatch: pytest.MonkeyPatch, variants: Any
) -> None:
    """Lanes compute side by side: a vote that is read before they join may not be there yet."""
    events: list[str] = []

    class Watched(Lanes):
        def join(self) -> None:
            events.append("joined")
            super().join()

    def of(votes: Votes, kind: Any) -> Tensor:
        events.append("read")
        return votes.hard if kind == "hard" else votes.soft

    calibrated = sicl.SICL(variants=variants, relaxation="none", temper=False).attach(
        sicl.Tent().attach(sicl.load_model("demo"))
    )
    calibrated(torch.rand(16, 3, 32, 32))
    monkeypatch.setattr(_invariance, "Lanes", Watched)
    monkeypatch.setattr(Votes, "of", of)
    calibrated(torch.rand(16, 3, 32, 32))
    assert events[0] == "joined"
    assert events.count("joined") == 1
    assert "read" in events


class _Engine:
    """What `Looks` asks of an engine."""

    def __init__(self) -> None:
        self.rows_sent, self.backs, self.stays = 0, 0, True

    def captures(self, _device: torch.device) -> bool:
        return True

    def fits(self, _images: Tensor) -> bool:
        return True

    def mark(self, sent: int) -> int:
        return self.rows_sent - sent

    def is_at(self, _mark: int) -> bool:
        return self.stays

    def back_to(self, mark: int) -> None:
        self.rows_sent += mark
        self.backs += 1


class _Captured:
    """A graph that computes by calling again, into the tensors it returned first."""

    made = 0

    def __init__(self, function: Callable[..., Any], example: list[Tensor], _pool: Any, **_: Any) -> None:
        type(self).made += 1
        self.function = function
        self.seen, self.signals = function([tensor.clone() for tensor in example])

    def __call__(self, inputs: list[Tensor]) -> Any:
        for static, value in zip(self.signals, self.function(inputs)[1]):
            static.copy_(value)
        return self.seen, self.signals


def _looks(monkeypatch: pytest.MonkeyPatch, broken: Tensor | None = None) -> tuple[Looks, _Engine]:
    engine = _Engine()
    monkeypatch.setattr(_look, "Captured", _Captured)
    monkeypatch.setattr(_Captured, "made", 0)

    def look(images: Tensor, _logits: Tensor, _temperature: Tensor) -> Look:
        engine.rows_sent += len(images)
        mean = images.mean(dim=1)
        calls.append(1)
        votes = broken if broken is not None and len(calls) > 2 else mean
        return Look(None, (engine,), {"softmax": mean, "style_invariance": votes})  # type: ignore[arg-type]

    calls: list[int] = []
    return Looks(look, [nn.Linear(2, 2)], torch.Generator()), engine


def _ask(looks: Looks, value: float, rows: int = 3) -> Look:
    return looks(torch.full((rows, 2), value), torch.zeros(rows, 2), torch.ones(()))


def test_a_look_is_replayed_from_the_second_batch_of_a_shape_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its signals are its own, and the engines are told that rows were sent."""
    looks, engine = _looks(monkeypatch)
    seen = [_ask(looks, value) for value in (0.1, 0.2, 0.3, 0.4)]
    assert [round(float(s.signals["softmax"][0]), 1) for s in seen] == [0.1, 0.2, 0.3, 0.4]
    assert (looks.captured, looks.problem, _Captured.made) == (1, "", 1)
    assert engine.backs == 4
    _ask(looks, 0.5, rows=5)
    assert looks.captured == 1


def test_a_look_is_captured_anew_when_an_engine_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the graph writes into is no longer what computes."""
    looks, engine = _looks(monkeypatch)
    _ask(looks, 0.1)
    _ask(looks, 0.2)
    engine.stays = False
    _ask(looks, 0.3)
    assert _Captured.made == 2


def test_parameters_that_moved_are_looked_at_plainly_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph reads addresses."""
    looks, _ = _looks(monkeypatch)
    table = looks._shapes._tables[0]
    _ask(looks, 0.1)
    _ask(looks, 0.2)
    table["weight"] = nn.Parameter(torch.zeros(2, 2))
    _ask(looks, 0.3)
    assert looks.captured == 0
    _ask(looks, 0.4)
    assert _Captured.made == 2


@pytest.mark.parametrize("value", [0.9, float("nan")])
def test_a_graph_with_other_votes_is_not_believed(value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where they are not numbers."""
    looks, _ = _looks(monkeypatch, broken=torch.full((3,), value))
    for number in (0.1, 0.2, 0.3):
        _ask(looks, number)
    assert looks.captured == 0
    assert "off by" in looks.problem


def test_images_that_are_not_numbers_do_not_end_the_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be compared with them; the next batch is captured."""
    looks, _ = _looks(monkeypatch)
    for value in (0.1, float("nan"), 0.3, 0.4):
        _ask(looks, value)
    assert (looks.captured, looks.problem) == (1, "")


class _Again:
    """A graph that looks again, with the noise that a replay would draw."""

    made = 0

    def __init__(
        self, function: Callable[..., Any], example: list[Tensor], _pool: Any, **options: Any
    ) -> None:
        _Again.made += 1
        self.function = function
        state = options["generator"].get_state()
        seen, _ = function([tensor.clone() for tensor in example])
        options["generator"].set_state(state)
        self.bases = [(engine, engine._base) for engine in seen.used]

    def __call__(self, inputs: list[Tensor]) -> Any:
        out = self.function(inputs)
        for engine, base in self.bases:
            # A graph leaves its features where they were when it was captured.
            base.copy_(engine._base)
        return out


@pytest.mark.parametrize("variants", [4, "adaptive"])
@pytest.mark.parametrize("members", [("style", "mirror"), ("style", "content", "mirror")])
def test_engines_go_on_from_a_replayed_look(
    variants: Any, members: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Confidence is that without graphs, also with other sizes in between, which replace what computes."""
    spec = sicl.SICL(members=members, variants=variants, content_variants=4, precision="float32")
    sizes = [(32, 32)] * 3 + [(20, 32), (8, 32), (32, 32), (20, 40), (32, 32), (32, 32)]
    pixels = torch.Generator().manual_seed(0)
    batches = [torch.rand(n, 3, side, side, generator=pixels) for n, side in sizes]

    def run() -> Tensor:
        trusted = spec.attach(sicl.Tent().attach(sicl.load_model("demo")))
        return torch.cat([trusted(batch).confidence for batch in batches])

    expected = run()
    monkeypatch.setattr(_look, "Captured", _Again)
    monkeypatch.setattr(_Again, "made", 0)
    monkeypatch.setattr(Engine, "captures", lambda self, _device: self._fast is not None)
    found = run()
    assert _Again.made >= 2
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
