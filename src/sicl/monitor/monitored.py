"""A calibrated classifier under watch."""

from __future__ import annotations

import functools
import math
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sicl import __version__
from sicl.adapt import Moment
from sicl.errors import InputError, reason
from sicl.monitor.detector import Detector
from sicl.monitor.log import AuditLog, Event
from sicl.monitor.reference import FeatureTap, Reference
from sicl.monitor.sequence import MeanSequence
from sicl.monitor.window import Estimate, Window, effective_classes, estimate_accuracy
from sicl.types import Prediction, SourceData

if TYPE_CHECKING:
    from sicl.calibrate import Calibrated
    from sicl.monitor.options import MonitorOptions

UNREAD_LABEL = -1
"""The label of an image that holds NaN or infinities; its confidence is 0."""
BATCH = 64
MOST_SOURCE = 1024
"""Source samples that make the reference, at most: more cost time and memory, and change nothing."""
CLAIMS = {
    "accuracy": "the estimated accuracy is below what the stream should have",
    "familiarity": "the stream is unlike what the network knows",
    "collapse": "the adapted network has collapsed onto few classes",
    "labels": "more labelled samples are wrong than the stream should have",
}


P = ParamSpec("P")
R = TypeVar("R")


def _one_at_a_time(
    method: Callable[Concatenate[Monitored, P], R],
) -> Callable[Concatenate[Monitored, P], R]:
    @functools.wraps(method)
    def locked(self: Monitored, /, *args: P.args, **options: P.kwargs) -> R:
        with self._lock:
            return method(self, *args, **options)

    return locked


class Monitored:
    """`out = monitored(images)`: predicts like the classifier it watches; `out.alarm` says why not to trust it.

    Calls from several threads are answered one after the other.

    Args:
        spec: the configuration.
        trusted: the calibrated classifier.
        source: reference samples.
        observers: called with every event.
        name: of the stream.
    """

    seen: int
    alarm: str
    reference: Reference | None
    _since: int
    _next_snapshot: int
    _next_line: int
    _first: list[tuple[Tensor, Tensor]]
    _healthy: dict[str, Any] | None
    _pending: dict[str, Any] | None
    _predicted: dict[int, tuple[int, float]]
    _labelled: list[tuple[float, float]]
    _right: MeanSequence
    _gap: MeanSequence

    def __init__(
        self,
        spec: MonitorOptions,
        trusted: Calibrated,
        *,
        source: SourceData | None = None,
        observers: Sequence[Callable[[Event], None]] = (),
        name: str = "stream",
    ) -> None:
        self._lock = threading.RLock()
        self.spec, self.trusted, self.name = spec, trusted, name
        self.observers = list(observers)
        self.log = None if spec.log is None else AuditLog(Path(spec.log))
        self.window = Window(spec.window)
        self.detector = Detector(spec.false_alarms)
        self._tap = FeatureTap(trusted.adapter.network)
        self._broken: set[int] = set()
        self._classes = 0
        self._source: Reference | None = None
        self._start_again()
        if source is not None:
            self._source = self.reference = self._learn(source)
        self._emit("start", version=__version__, configuration=self._configuration(), reference=self._origin)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())

    @property
    def alarmed(self) -> bool:
        """Return whether an alarm is on."""
        return bool(self.alarm)

    @property
    def estimate(self) -> Estimate | None:
        """Return the window's estimated accuracy, or None before the first batch.

        While an alarm is on, calibration is in doubt too, and the interval goes down to 0.
        """
        confidence = self.window.columns.get("confidence")
        if confidence is None:
            return None
        found = estimate_accuracy(confidence, **self._off(), level=self.spec.level)
        return found._replace(low=0.0) if self.alarmed else found

    @property
    def labelled(self) -> tuple[Tensor, Tensor]:
        """Return (confidence, correct) of the labelled samples, for `out.accept(risk=..., labelled=...)`."""
        rows = np.array(self._labelled, np.float64).reshape(-1, 2)
        return torch.from_numpy(rows[:, 0]), torch.from_numpy(rows[:, 1]).bool()

    @property
    def risk(self) -> Estimate:
        """Return the error rate of the labelled samples and its interval, which holds at every time."""
        low, high = self._right.interval
        return Estimate(1 - self._right.mean, 1 - high, 1 - low)

    @_one_at_a_time
    def __call__(self, images: Tensor) -> Prediction:
        """Predict a batch, watch, and act as the policy says if an alarm goes."""
        good = _finite(images)
        if good is not None and not bool(good.any()):
            if self._classes:
                return self._none_of(images)
            good = None  # How many classes there are is not known yet: the classifier says what is wrong.
        features, out = self._predict(images if good is None else images[good])
        first, self.seen = self.seen, self.seen + len(images)
        self._remember(out if good is None else _spread(out, good), first)
        if good is not None:
            self._emit("bad_images", n=int((~good).sum()), first=first)
            out = _spread(out, good)
        self._watch(features, out if good is None else _only(out, good))
        return replace(out, alarm=self.alarm)

    def _none_of(self, images: Tensor) -> Prediction:
        """Return a prediction of which nothing is known; only the count goes on."""
        first, self.seen = self.seen, self.seen + len(images)
        self._emit("bad_images", n=len(images), first=first)
        labels = torch.full((len(images),), UNREAD_LABEL, device=images.device)
        nothing = torch.zeros(len(images), self._classes, device=images.device)
        return Prediction(labels, nothing.amax(dim=1), nothing, alarm=self.alarm)

    @_one_at_a_time
    def warm_up(self, shape: Sequence[int]) -> None:
        """Do now what the first batches of a shape (N x C x H x W) would wait for; nothing is seen or learnt."""
        self.trusted.warm_up(shape)

    @_one_at_a_time
    def label(self, samples: Iterable[int], labels: Iterable[int]) -> Estimate:
        """Take in true labels, late or partial; return the risk with its interval.

        Which samples are labelled must not depend on whether they are right.

        Args:
            samples: their numbers, counted from 0 over the stream (`monitored.seen` counts on).
            labels: their true classes.

        Raises:
            InputError: a sample is unknown, too long ago, or labelled already; nothing is taken in then.
        """
        numbers, truth = [int(i) for i in samples], [int(label) for label in labels]
        unknown = [i for i in numbers if i not in self._predicted]
        if unknown or len(numbers) != len(truth) or len(set(numbers)) != len(numbers):
            raise InputError(
                "`samples` and `labels` must be equally many, each sample one of the last "
                f"{self.spec.remember:,} and labelled once; got {len(numbers)}, {len(truth)}"
                + (f" and sample {unknown[0]}." if unknown else ".")
            )
        rows = [self._predicted.pop(i) for i in numbers]
        right = np.array([float(label == true) for (label, _), true in zip(rows, truth)])
        confidence = np.array([c for _, c in rows])
        self._labelled += zip(confidence.tolist(), right.tolist())
        del self._labelled[: -self.spec.remember]
        self._right.add(right)
        self._gap.add((right - confidence + 1) / 2)
        self._bet({"labels": right})
        risk = self.risk
        self._emit("labels", n=len(rows), labelled_risk=risk[0], risk_low=risk[1], risk_high=risk[2])
        return risk

    @_one_at_a_time
    def acknowledge(self) -> None:
        """Take an alarm off by hand: a person has looked."""
        if self.alarmed:
            self._well_again("acknowledged")

    @_one_at_a_time
    def reset(self) -> None:
        """Return classifier and monitor to their start; a reference from source data stays."""
        self.trusted.reset()
        self._start_again()
        self._emit("reset")

    @_one_at_a_time
    def close(self) -> None:
        """Write the last event and let go of the log."""
        self._emit("stop")
        if self.log is not None:
            self.log.close()

    @_one_at_a_time
    def state_dict(self) -> dict[str, Any]:
        """Return all that the next prediction, estimate and alarm depend on."""
        return {
            "monitor": self._configuration(),
            "trusted": self.trusted.state_dict(),
            "window": self.window.state_dict(),
            "detector": self.detector.state_dict(),
            "right": self._right.state_dict(),
            "gap": self._gap.state_dict(),
            "reference": None if self.reference is None else self.reference.state_dict(),
            "first": list(self._first),
            "healthy": self._healthy,
            "pending": self._pending,
            "predicted": dict(self._predicted),
            "labelled": list(self._labelled),
            "numbers": (self.seen, self.alarm, self._since, self._next_snapshot, self._next_line),
        }

    @_one_at_a_time
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave.

        Raises:
            InputError: the state is another monitor's or another model's; everything stays as it was.
        """
        if not isinstance(state, dict) or state.get("monitor") != self._configuration():
            raise InputError("`state` must come from a monitor of the same configuration; attach that spec.")
        before = self.state_dict()
        try:
            self._load(state)
        except Exception as error:
            self._load(before)
            raise InputError(
                f"`state` does not fit this model ({reason(error).rstrip('.:')}); attach the monitor to the model "
                "it was saved from."
            ) from error

    def _load(self, state: dict[str, Any]) -> None:
        self.trusted.load_state_dict(state["trusted"])
        self.window.load_state_dict(state["window"])
        self.detector.load_state_dict(state["detector"])
        self._right.load_state_dict(state["right"])
        self._gap.load_state_dict(state["gap"])
        self.reference = None if state["reference"] is None else Reference(**state["reference"])
        self._first, self._healthy, self._pending = list(state["first"]), state["healthy"], state["pending"]
        self._predicted, self._labelled = dict(state["predicted"]), list(state["labelled"])
        self.seen, self.alarm, self._since, self._next_snapshot, self._next_line = state["numbers"]

    def _start_again(self) -> None:
        self.window.clear()
        self.detector.reset()
        self.reference = self._source
        self.seen, self.alarm, self._since = 0, "", 0
        self._next_snapshot, self._next_line = self.spec.window, 0
        self._first, self._predicted, self._labelled = [], {}, []
        self._healthy = self._pending = None
        self._right, self._gap = MeanSequence(self.spec.level), MeanSequence(self.spec.level)

    def _configuration(self) -> dict[str, Any]:
        adapter = self.trusted.adapter.spec
        return {
            **self.spec.describe(),
            "method": repr(adapter),
            "network": type(self.trusted.adapter.network).__name__,
        }

    @property
    def _origin(self) -> str:
        return "none yet" if self.reference is None else self.reference.origin

    def _predict(self, images: Tensor, *, learn: bool = True) -> tuple[Tensor, Prediction]:
        seen: list[tuple[Tensor, Prediction]] = []

        def observe(moment: Moment) -> None:
            self._tap.close()
            seen.append((self._tap.features(moment.logits), self.trusted.calibration.predict(moment)))

        adapting = learn and not (self.alarmed and self.spec.policy == "freeze")
        with self._tap.open():
            self.trusted.adapter.step(images, observe, update=adapting)
        features, out = seen[0]
        self._classes = out.logits.shape[1]
        return features, self.trusted.stream.joined(out)

    def _learn(self, source: SourceData) -> Reference:
        """Return the reference from source data; the classifier is left as it was found."""
        before = self.trusted.state_dict()
        order = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))[:MOST_SOURCE]
        parts = [part for part in torch.split(order, BATCH) if len(part) > 1 or len(order) == 1]
        seen = [self._predict(source.images[part], learn=False) for part in parts]
        self.trusted.load_state_dict(before)
        features, confidence = zip(*[(f, out.confidence) for f, out in seen])
        return Reference.of(torch.cat(features), torch.cat(confidence), "source")

    def _remember(self, out: Prediction, first: int) -> None:
        rows = zip(out.labels.tolist(), out.confidence.tolist())
        self._predicted.update({first + i: row for i, row in enumerate(rows) if row[0] != UNREAD_LABEL})
        while len(self._predicted) > self.spec.remember:
            del self._predicted[next(iter(self._predicted))]

    def _watch(self, features: Tensor, out: Prediction) -> None:
        """Score a batch, bet against the claims, and act."""
        confidence = out.confidence.double().cpu().numpy()
        columns = {"confidence": confidence, "labels": out.labels.double().cpu().numpy()}
        scores = {"accuracy": confidence}
        if self.reference is not None:
            familiar = self.reference.familiarity(features).double().cpu().numpy()
            columns["familiarity"] = scores["familiarity"] = familiar
        level = out.signals.get("collapse")
        if level is not None:
            columns["collapse"] = np.full(len(out), float(level.float().mean()))
            scores["collapse"] = 1 - columns["collapse"]
        self.window.add(**columns)
        self._bet(scores)
        if self.reference is None:
            self._gather(features, out)
        if self.alarmed and self.seen - self._since >= self.spec.window and self._keeps_claims():
            self._well_again("recovered")
        self._snapshot()
        self._emit("state", n=len(out), **self._state())

    def _gather(self, features: Tensor, out: Prediction) -> None:
        """Collect the first window, which becomes the reference when it is whole."""
        self._first.append((features.detach().clone(), out.confidence))
        if sum(len(part) for part, _ in self._first) >= self.spec.window:
            features, confidence = (torch.cat(parts) for parts in zip(*self._first))
            self.reference, self._first = Reference.of(features, confidence, "first window"), []
            self._emit("reference", origin=self._origin, confidence=self.reference.confidence)

    @property
    def limits(self) -> dict[str, float]:
        """Return the least mean score of each claim; those that need a reference come with it."""
        limits = {"collapse": 1 - self.spec.collapse}
        floor = self.spec.accuracy
        if self.reference is not None:
            limits["familiarity"] = self.spec.familiarity
            floor = 2 / 3 * self.reference.confidence if floor is None else floor
        if floor is not None:
            limits["accuracy"] = limits["labels"] = floor
        return limits

    def _bet(self, scores: dict[str, NDArray[np.float64]]) -> None:
        if self.detector.add(scores, self.limits) is None:
            return
        claim, evidence = self.detector.suspects[0], self.detector.evidence
        self.detector.reset()
        again = self.spec.policy in ("reset", "rollback")
        if self.alarmed and not again:
            return
        said = f" ({self.window.mean(_COLUMN[claim]):.2f} over the window)" if claim in _COLUMN else ""
        self.alarm = f"{CLAIMS[claim]}{said}."
        self._since = self.seen
        self._emit("alarm", claim=claim, alarm=self.alarm, evidence=evidence, policy=self.spec.policy)
        self._act()

    def _act(self) -> None:
        did = self.spec.policy
        if did == "rollback" and self._healthy is not None:
            self.trusted.load_state_dict(self._healthy)
        elif did in ("reset", "rollback"):
            did = "reset"
            self.trusted.reset()
        self._pending = None
        if did != "warn":
            self._emit("policy", did=did)

    def _keeps_claims(self) -> bool:
        means = {claim: self.window.mean(column) for claim, column in _COLUMN.items()}
        if means["collapse"] is not None:
            means["collapse"] = 1 - means["collapse"]
        limits = self.limits
        return all(mean is None or mean >= limits.get(claim, 0.0) for claim, mean in means.items())

    def _well_again(self, why: str) -> None:
        self.alarm = ""
        self.detector.reset()
        self._next_snapshot = self.seen + self.spec.window
        self._emit("recovered", why=why)

    def _snapshot(self) -> None:
        """Keep the state that was well a window ago: evidence of trouble needs time to come in."""
        if self.spec.policy != "rollback" or self.seen < self._next_snapshot or self.alarmed:
            return
        self._next_snapshot = self.seen + self.spec.window
        if self.detector.evidence < 1 / math.sqrt(self.spec.false_alarms):
            self._healthy, self._pending = self._pending or self._healthy, self.trusted.state_dict()

    def _off(self) -> dict[str, Any]:
        """Return the assumed miscalibration, or what the labels say where they say more."""
        assumed = self.spec.miscalibration
        low, high = (2 * end - 1 for end in self._gap.interval)
        # Two standard deviations to either side are what is assumed.
        narrower = self._gap.n > 0 and high - low <= 4 * assumed
        if narrower or low > 0 or high < 0:
            return {"miscalibration": 0.0, "bias": (low, high)}
        return {"miscalibration": assumed}

    def _state(self) -> dict[str, Any]:
        estimate = self.estimate
        low, high = ("accuracy_low", "accuracy_high")
        numbers = {} if estimate is None else dict(zip(("accuracy", low, high), estimate))
        return {
            **numbers,
            "variety": effective_classes(self.window.columns["labels"]),
            "collapse": self.window.mean("collapse"),
            "familiarity": self.window.mean("familiarity"),
            "evidence": self.detector.evidence,
        }

    def _emit(self, kind: str, **content: Any) -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        event = {"event": kind, "time": now, "name": self.name, "seen": self.seen, **content}
        event["alarmed"] = self.alarmed
        for i, observer in enumerate(self.observers):
            try:
                observer(event)
            except Exception as error:
                if i not in self._broken:
                    text = f"An observer of {self.name!r} failed ({error!r}); predictions go on without it."
                    warnings.warn(text, RuntimeWarning, stacklevel=2)
                self._broken.add(i)
        if self.log is None or (kind == "state" and self.seen < self._next_line):
            return
        if kind == "state":
            self._next_line = self.seen + self.spec.every
        self.log(event)


_COLUMN = {"accuracy": "confidence", "familiarity": "familiarity", "collapse": "collapse"}


def _finite(images: Tensor) -> Tensor | None:
    """Return which images are whole if some are not; None leaves the judgement to the classifier."""
    if (
        not isinstance(images, Tensor)
        or images.ndim != 4
        or not images.is_floating_point()
        or not len(images)
    ):
        return None
    good = torch.isfinite(images.flatten(1).sum(dim=1, dtype=torch.float32))
    return None if bool(good.all()) else good


def _spread(out: Prediction, good: Tensor) -> Prediction:
    """Return a prediction for all images: those that are not whole have no label and no confidence."""

    def filled(values: Tensor, empty: float) -> Tensor:
        full = values.new_full((len(good), *values.shape[1:]), empty)
        full[good.to(values.device)] = values
        return full

    signals = {
        name: filled(value, 0) if value.ndim and len(value) == len(out) else value
        for name, value in out.signals.items()
    }
    labels, confidence = filled(out.labels, UNREAD_LABEL), filled(out.confidence, 0)
    return replace(out, labels=labels, confidence=confidence, logits=filled(out.logits, 0), signals=signals)


def _only(out: Prediction, good: Tensor) -> Prediction:
    keep = good.to(out.labels.device)
    return replace(out, labels=out.labels[keep], confidence=out.confidence[keep], logits=out.logits[keep])
