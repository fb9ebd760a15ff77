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

    Each prediction is put to questions of a natural size: does it survive a mirror, a small crop, a repair of the image
    (softened, sharpened), the style of another image (its channel statistics, in shallow features)? The softmax of a
    network that does not train itself is an answer too. Two witnesses are asked: the network as it predicts, and the
    anchor, which is the network as it was attached, its early batch norms by the batch's statistics (where it neither
    adapts nor has batch norms the two are one). Each answer counts by its clarity: how little doubt it leaves on the
    recent stream, at what price in the variety of classes that it names. A question that destroys the images leaves
    doubt, and so do statistics that do not fit; a repair that undoes what noise or blur did leaves less. What one
    witness answers is averaged, and so are the log-odds of the witnesses: what one of them finds unlikely is unlikely.
    A network that trains itself, which makes it sure, and its anchor have half of the say each; one that has collapsed
    loses its half. No labels, no gradients, no source data; with labelled source data (`attach(..., source=)`) a small
    map from the answers to correctness is fitted. `SICL.paper()` is the printed formula.

    Args:
        members: the questions whose votes count: the "softmax" itself, the "mirror" image (leave it out where left
            and right matter), a "crop" of it, two "repair"s, "style" variants (the paper's), noise in the "content".
        witnesses: who is asked: the "network" as it predicts; the "anchor", which is the network as it was attached,
            its early batch norms by the batch at hand.
        say: how answers are weighed: "learnt": by how clear each is on the recent stream; "equal": all alike, and
            every batch by itself, however small (printed).
        fitted: map the answers to correctness by labelled source data, which `attach(..., source=)` must then bring
            (and which it asks for by itself).
        variants: style variants a batch (the paper's N), shared between the witnesses; "adaptive": 4 to 20 each, as
            many as a sample's confidence needs to settle (content variants too).
        content_variants: content variants a batch, where they are needed.
        budget_ms: milliseconds that calibration may take a batch, beside the network's own prediction: as many variants
            as fit (`signals["variants"]` says how many), fewer questions if a single one does not, the softmax alone at
            the least. What fits is measured on the batches before, so confidences then depend on the machine. None:
            `variants` and `content_variants`, whatever they take.
        votes: "hard": share of variants with the same class (printed); "soft": their mean probability of it.
        style: "gaussian" noise on the statistics (printed), the style of another sample of the batch ("swap"),
            or a random mixture with it ("mixstyle").
        delta: the noise's unit, the spread of channel means over the batch: per "channel" or one "global".
        components: perturb "both" statistics, only the "mean" or only the "std".
        style_scale: multiple of delta, for "gaussian".
        content_scale: multiple of the content noise.
        noise: "independent" variants (printed), or "antithetic" pairs of opposite signs: same distribution,
            less variance, so fewer variants give the same answer.
        relaxation: "printed": times (1 - content invariance); "guard": a network that has collapsed tells fewer classes
            apart than the anchor, and loses its say to it; "none": answers are compared within each witness only.
        temper: hear the witnesses at a temperature: above 1 halfway to the one that fits images mixed from the stream,
            below 1 that one.
        layer: where to perturb style: "stem" (what enters the first stage), "auto" (what leaves it: the
            paper's place), a module name, or "NAME:input".
        content_layer: where to perturb content, likewise.
        norm: batch norms during variants: "frozen" at the clean batch's statistics, or each variant's "batch".
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
            "witnesses": ("network",),
            "say": "equal",
            "relaxation": "printed",
            "temper": False,
            "noise": "independent",
            "layer": "auto",
        }
        return cls(**{**printed, **changes})

    def attach(self, target: nn.Module | Adapter, *, source: SourceData | None = None) -> Calibrated:
        """Return a live, calibrated classifier; with source data its map to correctness is fitted on them first.

        The printed formula knows no source data.
        """
        spec = self if source is None or self.relaxation == "printed" else replace(self, fitted=True)
        return Calibrator.attach(spec, target, source=source)

    def calibration(self, adapter: Adapter, *, source: SourceData | None = None) -> Calibration:
        """Return the live calibration; source data is used if `fitted` asks for it."""
        if not self.fitted:
            return SiclCalibration(self, adapter)
        return SiclCalibration(self, adapter, require_source(source, calibrator="SICL(fitted=True)"))
