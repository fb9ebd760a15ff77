"""SICL: style invariance as a correctness likelihood."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from sicl.adapt import Adapter
from sicl.calibrate._base import Calibrated, Calibration, Calibrator, require_source
from sicl.calibrate.sicl.calibration import SiclCalibration
from sicl.calibrate.sicl.options import Options
from sicl.types import SourceData


@dataclass(frozen=True, kw_only=True)
class SICL(Options, Calibrator):
    """Trust a prediction as far as it survives a change of style (Nam, Kim et al., WACV 2026).

    Each prediction is put to questions of a natural size: does it survive a mirror, a small crop, the style of another
    image (its channel statistics, in shallow features)? The softmax, tempered, is an answer like the others. They are
    put to the network as it predicts, to the anchor (the network as it was attached, if it adapts), and to the network
    by the batch's statistics (if it uses running ones). Where a witness's answers go up and down together from sample
    to sample they carry information, so that is how much say it gets; a network that has collapsed onto few classes
    loses its say to the anchor. No labels, no gradients, no source data; with labelled source data (`attach(...,
    source=)`) a small map from the answers to correctness is fitted. `SICL.paper()` is the printed formula.

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
            "witnesses": ("network",),
            "say": "equal",
            "relaxation": "printed",
            "temper": False,
            "noise": "independent",
            "layer": "auto",
        }
        return cls(**{**printed, **changes})

    def attach(self, target: nn.Module | Adapter, *, source: SourceData | None = None) -> Calibrated:
        """Return a live, calibrated classifier; with source data its map to correctness is fitted on them first."""
        spec = self if source is None else replace(self, fitted=True)
        return Calibrator.attach(spec, target, source=source)

    def calibration(self, adapter: Adapter, *, source: SourceData | None = None) -> Calibration:
        """Return the live calibration; source data is used if `fitted` asks for it."""
        if not self.fitted:
            return SiclCalibration(self, adapter)
        return SiclCalibration(self, adapter, require_source(source, calibrator="SICL(fitted=True)"))
