"""What every calibrator shares: attaching to a model or an adapter, and one adaptation run for many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sicl.adapt import Adapter, Moment, Source
from sicl.errors import InputError, OptionError, UnsupportedModelError
from sicl.types import Prediction, SourceData


@dataclass(frozen=True, kw_only=True)
class Calibrator(ABC):
    """A calibrator as configuration; `attach` makes it live on an adapter, or on a plain model."""

    def attach(self, target: nn.Module | Adapter, *, source: SourceData | None = None) -> Calibrated:
        """Return a live, calibrated classifier.

        Args:
            target: an adapter, or a model to be calibrated without adaptation (a private copy is made).
            source: labelled source data, for the calibrators that need some.
        """
        adapter = as_adapter(target)
        return Calibrated(adapter, self.calibration(adapter, source=source))

    @abstractmethod
    def calibration(self, adapter: Adapter, *, source: SourceData | None = None) -> Calibration:
        """Return the live calibration alone, to be shown the moments of `adapter` by its caller."""


class Calibration(ABC):
    """A live calibrator: turns a moment (the state that predicts) into confidence.

    Laws: it changes neither the network's parameters nor its buffers nor the global random state, and it
    keeps the adapter's predicted labels.
    """

    @torch.no_grad()
    def predict(self, moment: Moment) -> Prediction:
        """Return the calibrated prediction of one batch."""
        confidence, signals = self.confidence(moment)
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

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Take over a state that `state_dict` gave."""


class Calibrated:
    """A classifier with trustworthy confidence: `out = calibrated(images)`.

    Args:
        adapter: predicts and adapts.
        calibration: says how far each prediction can be trusted.
    """

    def __init__(self, adapter: Adapter, calibration: Calibration) -> None:
        self.adapter = adapter
        self.calibration = calibration

    def __call__(self, images: Tensor) -> Prediction:
        """Adapt, predict and calibrate one batch."""
        seen: list[Prediction] = []
        self.adapter.step(images, lambda moment: seen.append(self.calibration.predict(moment)))
        return seen[0]

    def explain(self) -> str:
        """Say in words who predicts, who calibrates, which engine runs and why not a faster one."""
        named = type(getattr(self.calibration, "spec", self.calibration)).__name__
        calibrator = named.removeprefix("_").removesuffix("Calibration")
        method = type(self.adapter.spec).__name__
        return "\n".join([f"{method} predicts, {calibrator} calibrates", *explain_engine(self.calibration)])

    def reset(self) -> None:
        """Return both the adapter and the calibration to their start."""
        self.adapter.reset()
        self.calibration.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of both."""
        return {"adapter": self.adapter.state_dict(), "calibration": self.calibration.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self.adapter.load_state_dict(state["adapter"])
        self.calibration.load_state_dict(state["calibration"])


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


class Panel:
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
        self.adapter = as_adapter(target)
        self.calibrations = {n: c.calibration(self.adapter, source=source) for n, c in calibrators.items()}

    def __call__(self, images: Tensor) -> dict[str, Prediction]:
        """Adapt and predict once, calibrate with each."""
        out: dict[str, Prediction] = {}

        def observe(moment: Moment) -> None:
            out.update({name: c.predict(moment) for name, c in self.calibrations.items()})

        self.adapter.step(images, observe)
        return out

    def reset(self) -> None:
        """Return the adapter and every calibration to their start."""
        self.adapter.reset()
        for calibration in self.calibrations.values():
            calibration.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the adapter and of every calibration."""
        states = {name: calibration.state_dict() for name, calibration in self.calibrations.items()}
        return {"adapter": self.adapter.state_dict(), "calibrations": states}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave; the names must be the same."""
        if state["calibrations"].keys() != self.calibrations.keys():
            raise OptionError(
                f"The state has calibrators {', '.join(state['calibrations'])}, this panel has "
                f"{', '.join(self.calibrations)}; make the panel with the same names."
            )
        self.adapter.load_state_dict(state["adapter"])
        for name, calibration in self.calibrations.items():
            calibration.load_state_dict(state["calibrations"][name])


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
