"""The softmax's own confidence: what everybody has, and what adaptation spoils."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sicl.adapt import Adapter, Moment
from sicl.calibrate._base import Calibration, Calibrator
from sicl.types import SourceData


@dataclass(frozen=True, kw_only=True)
class Softmax(Calibrator):
    """No calibration: the largest softmax probability."""

    def calibration(self, adapter: Adapter, *, source: SourceData | None = None) -> Calibration:
        """Return the live calibration; it has no state."""
        return _SoftmaxCalibration()


class _SoftmaxCalibration(Calibration):
    def confidence(self, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        return moment.logits.softmax(dim=1).amax(dim=1), {}
