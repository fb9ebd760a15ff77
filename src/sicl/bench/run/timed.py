"""A panel that knows how long its parts take."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from sicl.adapt import Moment
from sicl.calibrate import Panel
from sicl.types import Prediction


class TimedPanel(Panel):
    """A panel that keeps the seconds of adaptation and of each calibrator.

    Work that one calibrator leaves to a GPU must not count as the next one's, so both ends of a part wait for it.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._whole = 0.0

    def __call__(self, images: Tensor) -> dict[str, Prediction]:
        """Adapt and predict once, calibrate with each."""
        started = _now(images)
        out = super().__call__(images)
        self._whole += _now(images) - started
        return out

    def calibrate(self, name: str, moment: Moment) -> Prediction:
        """Return what one calibrator makes of the state that predicts."""
        started = _now(moment.images)
        out = super().calibrate(name, moment)
        self._seconds[name] += _now(moment.images) - started
        return out

    def timing(self) -> dict[str, Any]:
        """Return the seconds so far: `adapt_s`, and `calibrate_s` by calibrator."""
        return {"adapt_s": self._whole - sum(self._seconds.values()), "calibrate_s": dict(self._seconds)}


def _now(images: Tensor) -> float:
    if images.is_cuda:
        torch.cuda.synchronize(images.device)
    return time.perf_counter()
