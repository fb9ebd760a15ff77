"""SICL: style invariance as a correctness likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from sicl import perturb
from sicl.adapt import Adapter
from sicl.calibrate._base import Calibration, Calibrator
from sicl.calibrate.sicl.calibration import SiclCalibration
from sicl.calibrate.sicl.questions import MEMBERS, Member
from sicl.engine.engine import EngineOptions
from sicl.errors import OptionError, require_choice, require_positive
from sicl.types import SourceData


@dataclass(frozen=True, kw_only=True)
class SICL(Calibrator):
    """Trust a prediction as far as it survives a change of style (Nam, Kim et al., WACV 2026).

    The default asks three questions of each prediction: does it survive another style (channel statistics of
    shallow features shaken), a little noise in the content, and a mirror? Its confidence is the mean
    probability that the answers give the predicted class. The noise is judged by the network as it was
    attached, where the batch's statistics are used: one that adapts to its own predictions becomes too sure of
    them. A guard compares the variety of both networks' predictions, and falls back on the attached one when
    adaptation has collapsed. Where mixed images show that the softmax is not overconfident, it joins the
    votes. No labels, no gradients, no source data. `SICL.paper()` is the printed formula.

    Args:
        members: whose votes are averaged: "style" variants (the paper's), "content" variants, the "mirror"
            image (leave it out where left and right matter).
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

    members: tuple[Member, ...] = ("style", "content", "mirror")
    variants: int | Literal["adaptive"] = 8
    content_variants: int = 8
    votes: Literal["hard", "soft"] = "soft"
    style: Literal["gaussian", "mixstyle", "swap"] = "swap"
    delta: Literal["channel", "global"] = "channel"
    components: perturb.Components = "both"
    style_scale: float = 1.0
    content_scale: float = 1.0
    content_by: Literal["attached", "adapted"] = "attached"
    noise: Literal["antithetic", "independent"] = "antithetic"
    relaxation: Literal["printed", "none", "guard"] = "guard"
    temper: bool = True
    layer: str = "stem"
    content_layer: str = "auto"
    norm: Literal["frozen", "batch"] = "batch"
    statistics: Literal["auto", "network"] = "auto"
    mixstyle_alpha: float = 0.1
    engine: Literal["auto", "plain", "twin", "fused", "graph", "compile"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    max_batch: int | None = None
    max_memory: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(self.members))
        require_positive(
            variants=20 if self.variants == "adaptive" else self.variants,
            style_scale=self.style_scale,
            content_scale=self.content_scale,
            mixstyle_alpha=self.mixstyle_alpha,
        )
        for member in self.members:
            require_choice(MEMBERS, members=member)
        require_choice(("hard", "soft"), votes=self.votes)
        require_choice(("gaussian", "mixstyle", "swap"), style=self.style)
        require_choice(("channel", "global"), delta=self.delta)
        require_choice(("both", "mean", "std"), components=self.components)
        require_choice(("attached", "adapted"), content_by=self.content_by)
        require_choice(("antithetic", "independent"), noise=self.noise)
        require_choice(("printed", "none", "guard"), relaxation=self.relaxation)
        require_choice(("frozen", "batch"), norm=self.norm)
        require_choice(("auto", "network"), statistics=self.statistics)
        self.engine_options()
        if not self.members:
            raise OptionError(f"`members` must name at least one of {', '.join(MEMBERS)}, got none.")
        if self.needs_content and self.content_variants < 1:
            raise OptionError(
                f"`content_variants` must be > 0 where content is perturbed, got {self.content_variants}; leave "
                '"content" out of `members` and the relaxation "printed" to go without.'
            )

    @property
    def needs_content(self) -> bool:
        """Whether the formula looks at content variants."""
        return "content" in self.members or self.relaxation == "printed"

    def engine_options(self) -> EngineOptions:
        """Return how the engine shall compute."""
        return EngineOptions(
            engine=self.engine,
            precision=self.precision,
            norm=self.norm,
            max_batch=self.max_batch,
            max_memory=self.max_memory,
        )

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
