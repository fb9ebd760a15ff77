"""A classifier under watch: estimates, alarms, policies, labels, state and bad input."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sicl
from sicl.adapt import Adapter, Moment
from sicl.calibrate import Calibrated, Calibration
from sicl.errors import InputError, OptionError
from sicl.monitor import Monitored
from sicl.states import same


class Colours(nn.Module):
    """Four classes told by the image's mean colour, on features that a strange image leaves alone."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(5, 4)
        with torch.no_grad():
            self.head.weight.copy_(torch.cat([8 * torch.eye(4), torch.zeros(4, 1)], dim=1))
            self.head.bias.zero_()

    def forward(self, images: Tensor) -> Tensor:
        means = images.mean(dim=(2, 3)) * self.scale
        rest = 1 - means.sum(dim=1, keepdim=True)
        spread = images.std(dim=(1, 2, 3)).unsqueeze(1)
        out: Tensor = self.head(torch.cat([means, rest, spread], dim=1))
        return out


def pictures(n: int, seed: int = 0, *, strange: bool = False) -> tuple[Tensor, Tensor]:
    """Return images of one colour each and their classes; strange ones are noisy stripes of a faint colour."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (n,), generator=generator)
    base = torch.zeros(n, 3)
    for c in range(3):
        base[labels == c, c] = 1
    base = (base + 0.05 * torch.randn(n, 3, generator=generator)).clamp(0, 1)
    images = base[:, :, None, None].expand(n, 3, 8, 8).clone()
    if strange:
        images = 0.3 * images + 0.7 * torch.arange(8).remainder(2)
    return images, labels


class Told(Calibration):
    """Confidence and collapse as the test tells them."""

    def __init__(self, confidence: float, collapse: float = 0.0) -> None:
        self.told, self.collapse = confidence, collapse

    def confidence(self, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        n = len(moment.logits)
        return torch.full((n,), self.told), {"collapse": torch.tensor(self.collapse)}


def trusted(confidence: float = 0.9, method: Any = None) -> Calibrated:
    """Return a calibrated toy classifier whose confidence is told."""
    return Calibrated((method or sicl.Source()).attach(Colours()), Told(confidence))


def source(n: int = 256) -> sicl.SourceData:
    """Return labelled pictures of the usual kind."""
    return sicl.SourceData(*pictures(n, seed=99))


def play(monitored: Monitored, n: int, *, strange: bool = False, batch: int = 32) -> list[sicl.Prediction]:
    """Show `n` pictures in batches."""
    images, _ = pictures(n, seed=monitored.seen + 1, strange=strange)
    return [monitored(part) for part in images.split(batch)]


def kinds(events: Sequence[dict[str, Any]]) -> list[str]:
    """Return what happened, without the regular states."""
    return [event["event"] for event in events if event["event"] != "state"]


def test_a_monitor_predicts_like_the_classifier_it_watches() -> None:
    """Same labels, same confidence, no alarm."""
    plain, watched = sicl.Softmax().attach(Colours()), sicl.Monitor().attach(sicl.Softmax().attach(Colours()))
    images, labels = pictures(64)
    out, seen = plain(images), watched(images)
    assert torch.equal(out.labels, seen.labels)
    assert torch.equal(out.confidence, seen.confidence)
    assert torch.equal(out.labels, labels)
    assert seen.alarm == ""


def test_the_estimate_is_the_mean_confidence_with_both_parts_in_its_interval() -> None:
    """Sampling and assumed miscalibration: the interval is wider than either alone."""
    watched = sicl.Monitor(miscalibration=0.03).attach(trusted(0.8))
    assert watched.estimate is None
    play(watched, 256)
    estimate = watched.estimate
    assert estimate is not None
    assert estimate.accuracy == pytest.approx(0.8)
    assert 0.03 < 0.8 - estimate.low < 0.12
    certain = sicl.Monitor(miscalibration=0.0).attach(trusted(1.0))
    play(certain, 256)
    assert certain.estimate is not None
    assert certain.estimate.low > 0.99


def test_a_strange_stream_alarms_within_256_samples_and_a_usual_one_does_not() -> None:
    """With source data from the first sample on; the calibrator itself stays confident."""
    watched = sicl.Monitor().attach(trusted(0.9), source=source())
    assert not any(out.alarm for out in play(watched, 1024))
    out = play(watched, 256, strange=True)[-1]
    assert "unlike what the network knows" in out.alarm
    assert watched.estimate is not None
    assert watched.estimate.low == 0.0


def test_without_source_data_the_first_window_is_the_reference() -> None:
    """A stream that turns strange alarms; one that begins strange is taken for well."""
    turns = sicl.Monitor().attach(trusted())
    play(turns, 256)
    assert play(turns, 256, strange=True)[-1].alarm
    begins = sicl.Monitor().attach(trusted())
    assert not play(begins, 512, strange=True)[-1].alarm


def test_a_falling_confidence_and_a_collapse_alarm_too() -> None:
    """Each claim has its own sentence."""
    falls = sicl.Monitor().attach(trusted(0.9), source=source())
    falls.trusted.calibration.told = 0.4
    assert "estimated accuracy" in play(falls, 256)[-1].alarm
    collapses = sicl.Monitor().attach(trusted(0.9), source=source())
    collapses.trusted.calibration.collapse = 1.0
    assert "collapsed" in play(collapses, 256)[-1].alarm


def test_an_alarm_ends_when_a_whole_window_is_well_or_a_person_says_so() -> None:
    """Recovery is an event; `acknowledge` is the other way out."""
    events: list[dict[str, Any]] = []
    watched = sicl.Monitor().attach(trusted(), source=source(), observers=[events.append])
    play(watched, 256, strange=True)
    assert watched.alarmed
    play(watched, 448)
    assert not watched.alarmed
    play(watched, 256, strange=True)
    watched.acknowledge()
    assert not watched.alarmed
    assert kinds(events) == ["start", "alarm", "recovered", "alarm", "recovered"]


class Drifting(Adapter):
    """Adapts by moving one parameter a step a batch."""

    def update(self, images: Tensor, logits: Tensor | None) -> None:
        with torch.no_grad():
            self.network.scale += 0.001


class Drift(sicl.Source):
    """The method that makes it."""

    def adapter(self, network: nn.Module, *, source: sicl.SourceData | None = None) -> Adapter:
        return Drifting(self, network)


@pytest.mark.parametrize("policy", ["warn", "freeze", "reset", "rollback"])
def test_each_policy_does_what_its_name_says(policy: Any) -> None:
    """warn adapts on, freeze stands still, reset returns to the start, rollback to the last healthy snapshot."""
    watched = sicl.Monitor(policy=policy).attach(trusted(method=Drift()), source=source())
    scale = lambda: float(watched.trusted.adapter.network.scale.detach())  # noqa: E731
    play(watched, 1024)
    before = scale()
    while not watched.alarmed:
        play(watched, 32, strange=True)
    at_alarm = scale()
    play(watched, 32, strange=True)
    moved = scale() - at_alarm
    assert before == pytest.approx(1.032, abs=1e-4)
    if policy in ("warn", "freeze"):
        assert at_alarm > before
        assert (moved > 0) == (policy == "warn")
    else:
        assert at_alarm == pytest.approx(1.0 if policy == "reset" else 1.024, abs=1e-4)


def test_labels_that_come_late_give_a_risk_with_an_interval() -> None:
    """Some samples, in any order; each once; unknown ones are refused as a whole."""
    watched = sicl.Monitor().attach(trusted(0.9))
    images, labels = pictures(256)
    for part in images.split(64):
        watched(part)
    risk = watched.label(range(100, 200), labels[100:200].tolist())
    assert risk.accuracy == 0.0
    assert 0 == risk.low < risk.high < 0.2
    confidence, correct = watched.labelled
    assert len(confidence) == 100
    assert correct.all()
    with pytest.raises(InputError, match="sample 100"):
        watched.label([3, 100], [0, 0])
    watched.label([3], [int(labels[3])])
    assert len(watched.labelled[0]) == 101


def test_only_the_last_predictions_wait_for_their_labels() -> None:
    """A label that comes too late is refused; memory stays bounded."""
    watched = sicl.Monitor(remember=40).attach(trusted())
    play(watched, 64)
    watched.label([63], [0])
    with pytest.raises(InputError, match="sample 2"):
        watched.label([2], [0])


def test_labels_replace_the_assumed_miscalibration() -> None:
    """A calibrator that says 0.6 where all is right is corrected by labels."""
    watched = sicl.Monitor(accuracy=0.5).attach(trusted(0.6))
    images, labels = pictures(512)
    watched(images)
    assert watched.estimate is not None
    assert watched.estimate.high < 0.8
    watched.label(range(512), labels.tolist())
    assert watched.estimate.high > 0.95


def test_wrong_labels_alarm() -> None:
    """Confidence may claim what it likes: labels that say otherwise are believed."""
    watched = sicl.Monitor().attach(trusted(0.95), source=source())
    images, labels = pictures(256)
    watched(images)
    watched.label(range(256), ((labels + 1) % 4).tolist())
    assert "labelled samples are wrong" in watched.alarm


def test_state_saves_and_resumes() -> None:
    """A resumed monitor goes on as the first would have: same evidence, same alarm at the same batch."""
    first = sicl.Monitor(policy="rollback").attach(trusted(method=Drift()), source=source())
    play(first, 640)
    first.label([1, 2], [0, 0])
    second = sicl.Monitor(policy="rollback").attach(trusted(method=Drift()))
    second.load_state_dict(first.state_dict())
    images, _ = pictures(256, seed=5, strange=True)
    ours = [first(part) for part in images.split(32)]
    theirs = [second(part) for part in images.split(32)]
    assert [out.alarm for out in ours] == [out.alarm for out in theirs]
    assert ours[-1].alarm
    assert first.estimate == second.estimate
    assert first.risk == second.risk
    assert torch.equal(first.trusted.adapter.network.scale, second.trusted.adapter.network.scale)


def test_another_models_state_is_refused_and_nothing_is_lost() -> None:
    """One sentence, and the monitor predicts as before."""
    watched = sicl.Monitor().attach(trusted())
    play(watched, 64)
    before = watched.state_dict()
    foreign = sicl.Monitor().attach(trusted()).state_dict()
    foreign["trusted"]["adapter"]["network"]["head.weight"] = torch.zeros(9, 9)
    with pytest.raises(InputError, match="does not fit this model"):
        watched.load_state_dict(foreign)
    with pytest.raises(InputError, match="same configuration"):
        watched.load_state_dict(sicl.Monitor(window=64).attach(trusted()).state_dict())
    after = watched.state_dict()
    assert torch.equal(
        before["trusted"]["adapter"]["network"]["head.weight"],
        after["trusted"]["adapter"]["network"]["head.weight"],
    )
    assert before["numbers"] == after["numbers"]


def test_images_with_nan_get_no_label_and_the_others_their_prediction() -> None:
    """A broken frame does not spoil its batch."""
    events: list[dict[str, Any]] = []
    watched = sicl.Monitor().attach(trusted(), observers=[events.append])
    images, labels = pictures(8)
    images[3, 0, 0, 0] = float("nan")
    out = watched(images)
    assert out.labels[3] == -1
    assert out.confidence[3] == 0
    keep = torch.arange(8) != 3
    assert torch.equal(out.labels[keep], labels[keep])
    assert "bad_images" in kinds(events)


def test_reset_returns_to_the_start_and_keeps_the_source_reference() -> None:
    """Window, evidence, alarm and network go; what the network knows stays."""
    watched = sicl.Monitor().attach(trusted(method=Drift()), source=source())
    play(watched, 320, strange=True)
    watched.reset()
    assert (watched.seen, watched.alarm, watched.estimate) == (0, "", None)
    assert watched.reference is not None
    assert float(watched.trusted.adapter.network.scale.detach()) == 1.0


def test_an_observer_that_fails_is_named_once_and_predictions_go_on() -> None:
    """Watching never costs an answer."""

    def fail(event: dict[str, Any]) -> None:
        raise ValueError("no")

    with pytest.warns(RuntimeWarning, match="predictions go on"):
        watched = sicl.Monitor().attach(trusted(), observers=[fail])
    assert len(play(watched, 64)) == 2


@pytest.mark.parametrize(
    "options",
    [
        {"window": 4},
        {"policy": "panic"},
        {"false_alarms": 0.0},
        {"accuracy": 1.5},
        {"level": 1.0},
        {"every": 0},
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    """When the spec is made, naming the option."""
    with pytest.raises(OptionError, match=next(iter(options))):
        sicl.Monitor(**options)


def test_the_watched_network_keeps_no_hook_and_source_data_leaves_it_untouched(tmp_path: Path) -> None:
    """Attaching with source data and predicting leave the classifier as they found it."""
    own = trusted(method=Drift())
    own(pictures(8)[0])
    before = own.state_dict()["adapter"]["counters"]
    watched = sicl.Monitor().attach(own, source=source())
    assert own.state_dict()["adapter"]["counters"] == before
    play(watched, 64)
    assert not any(module._forward_pre_hooks for module in own.adapter.network.modules())


def test_the_monitoring_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """Its blocks, one after the other, as a reader would run them."""
    page = Path(__file__).parents[2] / "docs" / "monitoring.md"
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE):
        exec(compile(block, page.name, "exec", dont_inherit=True), names)
    assert "Estimate(accuracy=" in capsys.readouterr().out
    assert len(names["bounded"]) == 64


def test_a_damaged_state_changes_nothing() -> None:
    """A state that lacks a part is refused in one sentence; classifier and monitor stay as they were."""
    one, other = (sicl.Monitor(window=16).attach(sicl.Softmax().attach(Colours())) for _ in range(2))
    one(torch.rand(16, 3, 8, 8))
    state = one.state_dict()
    del state["detector"]
    other(torch.rand(16, 3, 8, 8))
    before = other.state_dict()
    with pytest.raises(InputError, match="does not fit this model"):
        other.load_state_dict(state)
    assert same(other.state_dict()["trusted"], before["trusted"])
    assert other.seen == 16


def test_calls_from_several_threads_come_one_after_the_other() -> None:
    """No sample is lost or counted twice."""
    monitored = sicl.Monitor(window=16).attach(sicl.Softmax().attach(Colours()))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(monitored, torch.rand(12, 4, 3, 8, 8)))
    assert monitored.seen == 48
    assert len(monitored._predicted) == 48


def test_warming_up_is_not_seen() -> None:
    """Neither the window nor the classifier knows of it."""
    monitored = sicl.Monitor(window=16).attach(sicl.PseudoCal(window=16).attach(Colours()))
    before = monitored.state_dict()
    monitored.warm_up((4, 3, 8, 8))
    assert same(monitored.state_dict(), before)


@pytest.mark.parametrize("change", [{"window": "64"}, {"false_alarms": None}, {"log": 3}, {"policy": 1}])
def test_options_of_another_type_are_refused_in_a_sentence(change: dict[str, object]) -> None:
    """As every spec's."""
    with pytest.raises(OptionError, match=next(iter(change))):
        sicl.Monitor(**change)  # type: ignore[arg-type]


def test_a_batch_of_nothing_but_nan_is_answered_once_the_classes_are_known() -> None:
    """Label -1 and confidence 0, one event, and the classifier never sees it; before, it says what is wrong."""
    events: list[dict[str, Any]] = []
    monitored = sicl.Monitor(window=16).attach(sicl.Softmax().attach(Colours()), observers=[events.append])
    broken = torch.full((1, 3, 8, 8), float("nan"))
    with pytest.raises(InputError, match="NaN"):
        monitored(broken)
    monitored(pictures(4)[0])
    before = monitored.trusted.state_dict()
    out = monitored(broken)
    assert (out.labels.tolist(), out.confidence.tolist(), tuple(out.logits.shape)) == ([-1], [0.0], (1, 4))
    assert same(monitored.trusted.state_dict(), before)
    assert (events[-1]["event"], events[-1]["n"], monitored.seen) == ("bad_images", 1, 5)
