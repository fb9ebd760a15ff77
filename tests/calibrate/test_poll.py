"""A poll: questions that share an engine vote together, at any strength, round by round, and by graphs as without."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from calibrate_networks import images, small_net
from torch import Tensor

import sicl
from sicl.calibrate.sicl import questions as questions_module
from sicl.calibrate.sicl import votes as votes_module
from sicl.calibrate.sicl.budget import ROUNDS, settle
from sicl.calibrate.sicl.calibration import SiclCalibration
from sicl.calibrate.sicl.votes import Ask, paired, standard_error
from sicl.engine.graphs import Lanes
from sicl.engine.variants import Votes

sys.path.append(str(Path(__file__).parents[1] / "engine"))
import stand_in

ALL = ("softmax", "mirror", "crop", "style", "content")


def _calibration(**changes: Any) -> SiclCalibration:
    spec = sicl.SICL(**{"precision": "float32", "layer": "layer1", "members": ALL, **changes})
    calibration = spec.calibration(sicl.BatchNorm().attach(small_net()))
    assert isinstance(calibration, SiclCalibration)
    return calibration


def _poll(calibration: SiclCalibration, asks: list[Ask], batch: Tensor, n: int | None = None) -> list[Votes]:
    calibration.reset()
    labels = torch.arange(len(batch) if n is None else n) % 4
    return calibration.poll(asks, batch, labels, torch.ones(())).votes


@pytest.mark.parametrize("norm", ["batch", "frozen"])
@pytest.mark.parametrize("engine", ["plain", "traced"])
def test_questions_of_one_engine_vote_together_as_they_would_alone(engine: str, norm: str) -> None:
    """One pass, by the variants that each would have drawn."""
    calibration = _calibration(engine=engine, norm=norm)
    questions = calibration.witnesses[0].questions
    style, mirror = questions["style"], questions["mirror"]
    assert len({question.engine for question in questions.values()}) == 1
    sent = style.engine.rows_sent
    together = _poll(calibration, [Ask(style, 4), Ask(mirror, 1)], images(12))
    assert style.engine.rows_sent - sent == 5 * 12
    for ask, votes in zip((Ask(style, 4), Ask(mirror, 1)), together):
        alone = _poll(calibration, [ask], images(12))[0]
        torch.testing.assert_close(votes.soft, alone.soft, atol=1e-4, rtol=0)


def test_views_are_made_once_for_all_witnesses_and_go_before_the_cut_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each witness sees the same views, by one pass after that of the clean batch."""
    made: list[int] = []
    cropped = questions_module.cropped
    monkeypatch.setattr(questions_module, "cropped", lambda images: made.append(1) or cropped(images))
    spec = sicl.SICL(engine="plain", temper=False, layer="layer1")
    trusted: Any = spec.attach(sicl.Tent().attach(small_net()))
    trusted(images(16))
    calibration = trusted.calibration
    assert [witness.name for witness in calibration.witnesses] == ["network", "anchor"]
    made.clear()
    sent: list[tuple[str, int]] = []
    for witness in calibration.witnesses:
        split = next(iter(witness.questions.values())).engine.split
        features = split.features

        def note(batch: Tensor, *, groups: int = 1, who: str = witness.name, run: Any = features) -> Tensor:
            sent.append((who, len(batch)))
            out: Tensor = run(batch, groups=groups)
            return out

        monkeypatch.setattr(split, "features", note)
    trusted(images(16))
    assert made == [1]
    assert sent == [("network", 16), ("network", 64), ("anchor", 16), ("anchor", 64)]


def test_a_question_is_asked_at_several_strengths() -> None:
    """As a number or as a tensor; the harder, the fewer votes are left, and without strength the label stands."""
    calibration = _calibration()
    content = calibration.witnesses[0].questions["content"]
    asks = [Ask(content, 4, strength) for strength in (0.0, torch.tensor(1.0), 4.0)]
    batch = images(12)
    calibration.reset()
    labels = calibration.anchor.live(batch).argmax(dim=1)
    polled = calibration.poll(asks, batch, labels, torch.ones(()))
    none, some, much = (float(votes.mean("soft").mean()) for votes in polled.votes)
    assert float(polled.votes[0].hard.min()) == 1.0
    assert none > some > much


def test_rows_beyond_the_labels_only_share_the_statistics() -> None:
    """Recent images appended to a small batch: votes are on the first rows, as in the whole batch."""
    calibration = _calibration()
    style = calibration.witnesses[0].questions["style"]
    whole = _poll(calibration, [Ask(style, 4)], images(12))[0]
    some = _poll(calibration, [Ask(style, 4)], images(12), n=3)[0]
    assert torch.equal(some.soft, whole.soft[:, :3])


@pytest.mark.parametrize(("settled", "spent"), [(1.0, [4]), (1e-9, [4, 4, 12])])
def test_a_batch_stops_when_it_has_settled(settled: float, spent: list[int]) -> None:
    """A calm batch gets four variants, an undecided one all twenty, and the mean is over what was spent."""
    pool = torch.rand(20, 12, generator=torch.Generator().manual_seed(0))
    taken: list[int] = []

    def more(counts: Mapping[Any, int]) -> dict[Any, Votes]:
        taken.append(counts["style"])
        part = pool[sum(taken) - taken[-1] : sum(taken)]
        return {"style": Votes(part.round(), part, part, part)}

    seen = settle(more({"style": ROUNDS[0]}), more, "soft", settled=settled)["style"]
    assert taken == spent
    torch.testing.assert_close(seen.mean("soft"), pool[: sum(spent)].mean(dim=0))


def test_the_standard_error_is_that_of_a_mean() -> None:
    """By hand: two samples, one calm; opposite votes are one observation; one vote has no error."""
    votes = torch.tensor([[0.0, 0.5], [1.0, 0.5]])
    error = standard_error(Votes(votes, votes, votes, votes), "soft")
    torch.testing.assert_close(error, torch.tensor([0.5, 0.0]))
    four = torch.tensor([[0.0], [0.2], [1.0], [0.8]])
    assert float(standard_error(paired(Votes(four, four, four, four)), "soft")) == 0.0
    assert float(standard_error(Votes(*[votes[:1]] * 4), "soft").sum()) == 0.0


def test_the_error_says_how_far_a_confidence_moves_with_the_seed() -> None:
    """Over many seeds, after a few batches, its spread is about its `error`, and more variants buy it down."""
    spread, error = {}, {}
    for n in (8, 24):
        outs = []
        for seed in range(12):
            spec = sicl.SICL(variants=n, content_variants=n, seed=seed, temper=False, precision="float32")
            trusted = spec.attach(sicl.BatchNorm().attach(small_net()))
            outs.append([trusted(images(32, seed=batch)) for batch in range(4)][-1])
        spread[n] = float(torch.stack([out.confidence for out in outs]).std(dim=0).mean())
        error[n] = float(torch.stack([out.signals["error"] for out in outs]).mean())
        assert 0.6 * spread[n] < error[n] < 1.6 * spread[n]
    assert error[24] < 0.75 * error[8]


def test_the_mirror_alone_has_nothing_to_settle() -> None:
    """An adaptive budget without variants asks the mirror and stops."""
    batch = torch.rand(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    fixed, adaptive = (
        sicl.SICL(members=("mirror",), variants=v).attach(sicl.load_model("demo"))(batch)
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
    monkeypatch.setattr(votes_module, "Lanes", Watched)
    monkeypatch.setattr(Votes, "of", of)
    calibrated(torch.rand(16, 3, 32, 32))
    assert events[0] == "joined"
    assert "read" in events


@pytest.mark.parametrize(
    ("method", "variants", "members"),
    [
        (sicl.Tent(), 4, ALL),
        (sicl.Tent(), "adaptive", ("style", "mirror")),
        (sicl.Source(), "adaptive", ALL),
    ],
    ids=["tent", "tent, adaptive", "source, adaptive"],
)
def test_confidence_by_graphs_is_that_without_them(
    method: Any, variants: Any, members: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with other sizes in between, which replace what computes."""
    spec = sicl.SICL(
        members=members, variants=variants, content_variants=4, precision="float32", engine="graph"
    )
    sizes = [(32, 32)] * 3 + [(20, 32), (8, 32), (32, 32), (20, 40), (32, 32), (32, 32)]
    pixels = torch.Generator().manual_seed(0)
    batches = [torch.rand(n, 3, side // 4, side // 4, generator=pixels) for n, side in sizes]

    def run() -> tuple[Tensor, list[int], Any]:
        trusted = spec.attach(method.attach(small_net()))
        out = torch.cat([trusted(batch).confidence for batch in batches])
        calibration: Any = trusted.calibration
        asked = [q for witness in calibration.witnesses for q in witness.questions.values()]
        sent = [question.engine.rows_sent for question in asked]
        return out, sent, calibration

    expected, sent, _ = run()
    stand_in.use(monkeypatch)
    found, sent_by_graphs, calibration = run()
    assert stand_in.StandIn.made >= 2
    assert calibration.poll.captures.problem == ""
    assert sent_by_graphs == sent
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_whole_poll_is_captured_once_it_is_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second batch of a shape on, where the batch's statistics are used; not where values decide."""
    stand_in.use(monkeypatch)
    for method, spec, captured in (
        (sicl.Tent(), sicl.SICL(engine="graph"), 1),
        (sicl.Tent(), sicl.SICL(engine="graph", style="mixstyle"), 0),
        (sicl.Source(), sicl.SICL(engine="graph"), 1),
        (sicl.Source(), sicl.SICL(engine="graph", witnesses=("network",)), 1),
        (sicl.Tent(), sicl.SICL(engine="traced"), 0),
    ):
        trusted = spec.attach(method.attach(small_net()))
        for seed in range(4):
            trusted(images(16, seed=seed))
        calibration: Any = trusted.calibration
        assert calibration.poll.captures.captured == captured, (method, spec)
        if captured:
            assert calibration.engine.name.startswith("graph")
