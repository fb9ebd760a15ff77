"""SICL's options: what is asked, how, and how the answers become a confidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sicl import perturb
from sicl.engine.engine import EngineOptions
from sicl.errors import OptionError, require_positive
from sicl.spec import Spec

Name = Literal["style", "content", "mirror"]
NAMES: tuple[Name, ...] = ("style", "content", "mirror")
"""What can be asked of a prediction."""


@dataclass(frozen=True, kw_only=True)
class Options(Spec):
    """The fields of `SICL`, validated.

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

    members: tuple[Name, ...] = ("style", "content", "mirror")
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
    engine: Literal["auto", "plain", "twin", "traced", "fused", "graph"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    max_batch: int | None = None
    max_memory: float = 2.0
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive(
            variants=20 if self.variants == "adaptive" else self.variants,
            style_scale=self.style_scale,
            content_scale=self.content_scale,
            mixstyle_alpha=self.mixstyle_alpha,
        )
        self.engine_options()
        if not self.members:
            raise OptionError(f"`members` must name at least one of {', '.join(NAMES)}, got none.")
        if self.needs_content and self.content_variants < 1:
            raise OptionError(
                f"`content_variants` must be > 0 where content is perturbed, got {self.content_variants}; leave "
                '"content" out of `members` and the relaxation "printed" to go without.'
            )

    @property
    def needs_content(self) -> bool:
        """Whether the formula looks at content variants."""
        return "content" in self.members or self.relaxation == "printed"

    @property
    def asked(self) -> tuple[Name, ...]:
        """The questions that are asked, in their order."""
        return tuple(n for n in NAMES if n in self.members or (n == "content" and self.needs_content))

    @property
    def replaces_statistics(self) -> bool:
        """Whether the batch's statistics may stand in for running ones that do not fit: a mirror must tell."""
        return self.statistics == "auto" and self.norm != "frozen" and "mirror" in self.members

    def engine_options(self) -> EngineOptions:
        """Return how the engine shall compute."""
        return EngineOptions(
            engine=self.engine,
            precision=self.precision,
            max_batch=self.max_batch,
            max_memory=self.max_memory,
        )
