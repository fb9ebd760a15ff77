"""SICL: style invariance as a correctness likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sicl.adapt import Adapter
from sicl.calibrate._base import Calibration, Calibrator
from sicl.calibrate.sicl.calibration import SiclCalibration
from sicl.calibrate.sicl.options import Options
from sicl.types import SourceData


@dataclass(frozen=True, kw_only=True)
class SICL(Options, Calibrator):
    """Trust a prediction as far as it survives a change of style (Nam, Kim et al., WACV 2026).

    The default asks three questions of each prediction: does it survive another style (channel statistics of
    shallow features shaken), a little noise in the content, and a mirror? Its confidence is the mean
    probability that the answers give the predicted class. The noise is judged by the network as it was
    attached, where the batch's statistics are used: one that adapts to its own predictions becomes too sure of
    them. A guard compares the variety of both networks' predictions, and falls back on the attached one when
    adaptation has collapsed. Where mixed images show that the softmax is not overconfident, it joins the
    votes. No labels, no gradients, no source data. `SICL.paper()` is the printed formula.

    Its options are the fields of `Options`, where each is explained.
    """

    @classmethod
    def paper(cls, **changes: Any) -> SICL:
        """Return the formula exactly as printed: hard style votes, 20 of them, times (1 - content invariance)."""
        printed: dict[str, Any] = {
            "members": ("style",),
            "variants": 20,
            "content_variants": 20,
            "votes": "hard",
            "style": "gaussian",
            "content_by": "adapted",
            "relaxation": "printed",
            "temper": False,
            "statistics": "network",
            "noise": "independent",
            "layer": "auto",
        }
        return cls(**{**printed, **changes})

    def calibration(self, adapter: Adapter, *, source: SourceData | None = None) -> Calibration:
        """Return the live calibration; source data is not used."""
        return SiclCalibration(self, adapter)
