"""What every calibrator shares: attaching to a model or an adapter, and one adaptation run for many."""

from __future__ import annotations

import copy
import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sicl.adapt import Adapter, Moment, Source
from sicl.calibrate._memory import Confidences
from sicl.errors import InputError, OptionError, SiclError, UnsupportedModelError, reason, shown
from sicl.spec import Spec
from sicl.states import require_state
from sicl.types import Prediction, SourceData

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Calibrator(Spec, ABC):
    """A calibrator as configuration; `attach` makes it live on an adapter, or on a plain model."""

    def attach(self, target: nn.Module | Adapter, *, source: SourceData | None = None) -> Calibrated:
        """Return a live, calibrated classifier.

        Args:
            target: an adapter, or a model to be calibrated without adaptation (a private copy is made).
            source: labelled source data, for the calibrators that need some.
        """
        adapter = as_adapter(target)
        with torch.inference_mode(False):
            return Calibrated(adapter, self.calibration(adapter, source=source))

    @abstractmethod
    def calibration(self, adapter: Adapter, *, source: SourceData | None = None) -> Calibration:
        """Return the live calibration alone, to be shown the moments of `adapter` by its caller."""


class Calibration(ABC):
    """A live calibrator: turns a moment (the state that predicts) into confidence.

    Laws: it changes neither the network's parameters nor its buffers nor the global random state, and it
    keeps the adapter's predicted labels. Loading a state is all or nothing, for subclasses as well, and a batch
    that fails or is interrupted leaves the state as it was.
    """

    rehearsals: int = 3
    """How often a batch must come before all is ready for it: a CUDA graph is captured the second time."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "load_state_dict" in cls.__dict__:
            cls.load_state_dict = _all_or_nothing(cls.load_state_dict)  # type: ignore[method-assign, assignment]

    @torch.no_grad()
    def predict(self, moment: Moment) -> Prediction:
        """Return the calibrated prediction of one batch."""
        before = self.state_dict()
        try:
            confidence, signals = self.confidence(moment)
        except BaseException:
            _put_back(self, before)
            raise
        return Prediction(
            labels=moment.logits.argmax(dim=1),
            confidence=confidence.detach().float().clamp(0.0, 1.0),
            logits=moment.logits,
            signals=signals,
        )

    @abstractmethod
    def confidence(self, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """Return each sample's confidence and the signals it was made from."""

    def reset(self) -> None:  # noqa: B027
        """Forget what earlier batches taught; the base class has nothing to forget."""

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next confidence depends on."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a copy of a state that `state_dict` gave.

        Raises:
            InputError: the state is of another calibrator or network, or holds NaN; nothing has changed then.
        """
        require_state(state, {}, whose=_name(self))


Part = Adapter | Calibration | Confidences
"""What a live classifier is made of: each has a state of its own."""


def _name(calibration: Calibration) -> str:
    return type(getattr(calibration, "spec", calibration)).__name__


def _all_or_nothing(
    load: Callable[[Calibration, dict[str, Any]], None],
) -> Callable[[Calibration, dict[str, Any]], None]:
    """Return a `load_state_dict` that checks the state first and goes back if it fails on the way."""

    @functools.wraps(load)
    def checked(self: Calibration, state: dict[str, Any]) -> None:
        if self.__dict__.get("_loading"):  # a subclass's, on its way to `super()`
            return load(self, state)
        before = copy.deepcopy(self.state_dict())
        self.__dict__["_loading"] = True
        try:
            self.reset()  # what a state may lack is what a start lacks
            require_state(state, before, self.state_dict(), whose=_name(self))
            load(self, copy.deepcopy(state))
        except BaseException as error:
            load(self, before)
            if isinstance(error, SiclError) or not isinstance(error, Exception):
                raise
            raise InputError(
                f"`state` does not fit this {_name(self)} ({reason(error)}); attach what it was saved from, to the "
                "same model."
            ) from error
        finally:
            del self.__dict__["_loading"]

    return checked


def _put_back(calibration: Calibration, state: dict[str, Any]) -> None:
    """Load a state that the calibration had a moment ago: there is nothing to check."""
    calibration.__dict__["_loading"] = True
    try:
        calibration.load_state_dict(state)
    finally:
        del calibration.__dict__["_loading"]


def _load_together(state: Any, parts: Mapping[str, Part], whose: str) -> None:
    """Load each part's state, or none: what was loaded before a part that fails goes back."""
    if not isinstance(state, dict) or state.keys() != parts.keys():
        found = ", ".join(map(shown, state)) if isinstance(state, dict) else shown(state)
        raise InputError(
            f"`state` must have {', '.join(parts)}, as `state_dict` of {whose} gives; got {found}."
        )
    before: list[tuple[Part, dict[str, Any]]] = []
    try:
        for name, part in parts.items():
            before.append((part, copy.deepcopy(part.state_dict())))
            part.load_state_dict(state[name])
    except BaseException as error:
        for part, old in before:
            part.load_state_dict(old)
        if isinstance(error, SiclError) or not isinstance(error, Exception):
            raise
        raise InputError(f"`state` does not fit this {whose} ({reason(error)}).") from error


class _Live:
    """What can be called from several threads: one at a time. A copy has a lock of its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()


class Calibrated(_Live):
    """A classifier with trustworthy confidence: `out = calibrated(images)`.

    Calls from several threads are answered one after the other. `copy.deepcopy` and `pickle` give a classifier
    that goes on from the same state and shares nothing with this one.

    Args:
        adapter: predicts and adapts.
        calibration: says how far each prediction can be trusted.

    `stream` remembers the recent confidences, by which `out.accept(risk=...)` finds its threshold.
    """

    def __init__(self, adapter: Adapter, calibration: Calibration) -> None:
        super().__init__()
        self.adapter = adapter
        self.calibration = calibration
        self.stream = Confidences()

    def __call__(self, images: Tensor) -> Prediction:
        """Adapt, predict and calibrate one batch."""
        seen: list[Prediction] = []
        with self._lock:
            self.adapter.step(images, lambda moment: seen.append(self.calibration.predict(moment)))
            return self.stream.joined(seen[0])

    def warm_up(self, shape: Sequence[int]) -> None:
        """Do now, on random images, what the first batches of a shape (N x C x H x W) would wait for.

        That is tracing, the choice of the engine, on a GPU its tuning and capture, and for `SICL(budget_ms=...)` a
        measurement. Neither the adapter nor what the calibration remembers or draws changes.
        """
        with self._lock:
            _warm_up(self.adapter, [self.calibration], shape)

    def explain(self) -> str:
        """Say in words who predicts, who calibrates, which engine runs and why not a faster one."""
        named = type(getattr(self.calibration, "spec", self.calibration)).__name__
        calibrator = named.removeprefix("_").removesuffix("Calibration")
        method = type(self.adapter.spec).__name__
        return "\n".join([f"{method} predicts, {calibrator} calibrates", *explain_engine(self.calibration)])

    def reset(self) -> None:
        """Return adapter, calibration and stream to their start."""
        with self._lock:
            self.adapter.reset()
            self.calibration.reset()
            self.stream.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of adapter, calibration and stream."""
        with self._lock:
            return {name: part.state_dict() for name, part in self._parts.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a copy of a state that `state_dict` gave: of all parts, or of none."""
        with self._lock:
            _load_together(state, self._parts, "a calibrated model")

    @property
    def _parts(self) -> dict[str, Part]:
        return {"calibration": self.calibration, "adapter": self.adapter, "stream": self.stream}


def explain_engine(calibration: Calibration) -> list[str]:
    """Return the engine of a calibration in words, a line each; none if it has no engine."""
    engine = getattr(calibration, "engine", None)
    if engine is None:
        return []
    if not engine.split.plan:
        return ["engine: chosen on the first batch"]
    lines = [f"engine: {engine.name}, cut at {engine.split.point}"]
    if engine.reason:
        lines.append(f"not faster because {engine.reason}")
    return [*lines, *(f"note: {note}" for note in engine.notes)]


class Panel(_Live):
    """Several calibrators on one adaptation run: `panel(images)` gives a prediction for each name.

    Args:
        calibrators: specs by name.
        target: an adapter or a model.
        source: labelled source data for those that need it.
    """

    def __init__(
        self,
        calibrators: Mapping[str, Calibrator],
        target: nn.Module | Adapter,
        *,
        source: SourceData | None = None,
    ) -> None:
        if not calibrators:
            raise OptionError("`calibrators` must name at least one calibrator, got none.")
        super().__init__()
        self.adapter = as_adapter(target)
        with torch.inference_mode(False):
            self.calibrations = {
                n: c.calibration(self.adapter, source=source) for n, c in calibrators.items()
            }
        self.streams = {name: Confidences() for name in calibrators}

    def __call__(self, images: Tensor) -> dict[str, Prediction]:
        """Adapt and predict once, calibrate with each."""
        out: dict[str, Prediction] = {}

        def observe(moment: Moment) -> None:
            out.update({name: self.calibrate(name, moment) for name in self.calibrations})

        with self._lock:
            self.adapter.step(images, observe)
            return {name: self.streams[name].joined(prediction) for name, prediction in out.items()}

    def calibrate(self, name: str, moment: Moment) -> Prediction:
        """Return what one calibrator makes of the state that predicts: the hook of those who look on."""
        return self.calibrations[name].predict(moment)

    def warm_up(self, shape: Sequence[int]) -> None:
        """Do now what the first batches of a shape would wait for, as `Calibrated.warm_up` does, for all."""
        with self._lock:
            _warm_up(self.adapter, self.calibrations.values(), shape)

    def reset(self) -> None:
        """Return the adapter, every calibration and its stream to their start."""
        with self._lock:
            parts: list[Part] = [self.adapter, *self.calibrations.values(), *self.streams.values()]
            for part in parts:
                part.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the adapter, of every calibration and of its stream."""
        with self._lock:
            states = {name: calibration.state_dict() for name, calibration in self.calibrations.items()}
            streams = {name: stream.state_dict() for name, stream in self.streams.items()}
            return {"adapter": self.adapter.state_dict(), "calibrations": states, "streams": streams}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a copy of a state that `state_dict` gave, whole or not at all; the names must be the same."""
        states, streams = (
            state.get(name) if isinstance(state, dict) else None for name in ("calibrations", "streams")
        )
        if not isinstance(states, dict) or not isinstance(streams, dict) or "adapter" not in state:
            raise InputError(
                "`state` must have adapter, calibrations and streams, as `state_dict` of a panel gives; got "
                f"{shown(state)}."
            )
        if states.keys() != self.calibrations.keys():
            raise OptionError(
                f"The state has calibrators {', '.join(map(str, states))}, this panel has "
                f"{', '.join(self.calibrations)}; make the panel with the same names."
            )
        own: list[Mapping[str, Part]] = [self.calibrations, self.streams]
        with self._lock:
            _load_together(
                {**_named(states, streams), "adapter": state["adapter"]},
                {**_named(*own), "adapter": self.adapter},
                "a panel",
            )


def _named(calibrations: Mapping[str, T], streams: Mapping[str, T]) -> dict[str, T]:
    """Return the parts of a panel, or their states, each by a name for messages."""
    named = {f"the calibration {name!r}": part for name, part in calibrations.items()}
    return named | {f"the stream of {name!r}": part for name, part in streams.items()}


def _warm_up(adapter: Adapter, calibrations: Iterable[Calibration], shape: Sequence[int]) -> None:
    """Show calibrations random images of a shape; what they remember and warned about stays as it was."""

    def observe(moment: Moment) -> None:
        for calibration in calibrations:
            before, warned = calibration.state_dict(), copy.copy(calibration.__dict__.get("warned"))
            try:
                for _ in range(calibration.rehearsals):
                    calibration.predict(moment)
            finally:
                _put_back(calibration, before)
                calibration.__dict__.update({} if warned is None else {"warned": warned})

    adapter.warm_up(shape, observe)


def as_adapter(target: nn.Module | Adapter) -> Adapter:
    """Return `target` if it adapts already, else an unadapted private copy of the model."""
    if isinstance(target, Adapter):
        return target
    if isinstance(target, nn.Module):
        return Source().attach(target)
    raise UnsupportedModelError(
        f"A calibrator attaches to a torch.nn.Module or an adapter, got {type(target).__name__}."
    )


def require_source(source: SourceData | None, *, calibrator: str) -> SourceData:
    """Return `source`, or say how to pass it."""
    if source is None:
        raise InputError(
            f"`{calibrator}` needs labelled source data: pass `source=SourceData(images, labels)` to `attach`."
        )
    return source
