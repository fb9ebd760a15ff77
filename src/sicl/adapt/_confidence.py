"""What a method may ask of a calibrator, said without importing one: imports flow the other way."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from sicl.adapt._base import Moment
from sicl.types import Prediction, SourceData


class LiveConfidence(Protocol):
    """A live calibration."""

    def predict(self, moment: Moment) -> Prediction:
        """Return the prediction of a batch with its confidence."""


@runtime_checkable
class Stateful(Protocol):
    """A live calibration that remembers something between batches."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state."""


@runtime_checkable
class Confidence(Protocol):
    """A calibrator such as `sicl.SICL()`; all of the package's are."""

    def calibration(self, adapter: Any, *, source: SourceData | None = None) -> LiveConfidence:
        """Return the live calibration for an adapter."""
