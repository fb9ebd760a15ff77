"""SICL: style invariance as a correctness likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sicl.adapt import Adapter
from sicl.calibrate._base import Calibration, Calibrator
from sicl.calibrate.sicl.calibration import SiclCalibration
from sicl.calibrate.sicl.options import SiclOptions
from sicl.types import SourceData


@dataclass(frozen=True, kw_only=True)
class SICL(SiclOptions, Calibrator):
    """Trust a prediction as far as it survives a change of style (Nam, Kim et al., WACV 2026).

    The default asks three questions of each prediction: does it survive another style (channel statistics of
    shallow features shaken), a little noise in the content, and a mirror? Its confidence is the mean
    probability that the answers give the predicted class. The noise is judged by the network as it was
    attached, where the batch's statistics are used: one that adapts to its own predictions becomes too sure of
    them. A guard compares the variety of both networks' predictions, and falls back on the attached one when
    adaptation has collapsed. Where mixed images show that the softmax is not overconfident, it joins the
    votes. No labels, no gradients, no source data. `SICL.paper()` is the printed formula.

    Args:
        members: the questions whose votes are averaged: "style" variants (the paper's), "content" variants, the
            "mirror" image (leave it out where left and right matter).
        variants: style variants a batch (the paper's N); "adaptive": 4 to 20, as many as a sample's confidence
            needs to settle (content variants too).
        content_variants: content variants a batch, where they are needed.
        votes: "hard": share of variants with the same class (printed); "soft": their mean probability of it.
        style: "gaussian" noise on the statistics (printed), the style of another sample of the batch ("swap"),
            or a random mixture with it ("mixstyle").
        delta: the noise's unit, the spread of channel means over the batch: per "channel" or one "global".
        components: perturb "both" statistics, only the "mean" or only the "std".
        style_scale: multiple of delta, for "gaussian".
        content_scale: multiple of the content noise.
        content_by: who judges content variants: the network as it was "attached", or as it has "adapted"
            (printed). Where running statistics are used it is always the adapted one: they fit no other.
        noise: "independent" variants (printed), or "antithetic" pairs of opposite signs: same distribution,
            less variance, so fewer variants give the same answer.
        relaxation: "printed": times (1 - content invariance); "none"; "guard": toward the confidence of the
            network as attached, as far as the adapted one has collapsed onto fewer classes than it.
        temper: ask images mixed from the stream whether the softmax is overconfident at all; as far as it is
            not, it joins the votes.
        layer: where to perturb style: "stem" (what enters the first stage), "auto" (what leaves it: the
            paper's place), a module name, or "NAME:input".
        content_layer: where to perturb content, likewise.
        norm: batch norms during variants: "frozen" at the clean batch's statistics, or each variant's "batch".
        statistics: for a network that normalises with running statistics: "network": so do the votes; "auto":
            the less the running ones fit the stream (the fewer mirrored predictions survive the change), the more
            votes use the batch's own, unless the batches are small or sorted by class.
        mixstyle_alpha: of the Beta distribution that mixes styles.
        engine: how variants are computed; see `docs/engine.md`. "auto" finds the fastest that works.
        precision: of the variants' passes; "auto": bfloat16 where the device is faster in it.
        max_batch: the most rows sent through the network at once; None: as many as `max_memory` allows.
        max_memory: GiB that variants may take at once.
        seed: of the noise.

    Raises:
        OptionError: a value is out of range.
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
