"""SICL's options: what is asked, how, and how the answers become a confidence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sicl import perturb
from sicl.engine.engine import EngineOptions
from sicl.errors import OptionError, require_positive
from sicl.spec import Spec

Name = Literal["softmax", "mirror", "crop", "repair", "style", "content"]
NAMES: tuple[Name, ...] = ("softmax", "mirror", "crop", "repair", "style", "content")
"""What can be asked of a prediction."""
Who = Literal["network", "anchor"]
WITNESSES: tuple[Who, ...] = ("network", "anchor")
"""Who can be asked."""


@dataclass(frozen=True, kw_only=True)
class Options(Spec):
    """The fields of `SICL`, where each is explained, and what follows from them."""

    members: tuple[Name, ...] = ("softmax", "mirror", "crop", "repair", "style")
    witnesses: tuple[Who, ...] = WITNESSES
    say: Literal["learnt", "equal"] = "learnt"
    fitted: bool = False
    variants: int | Literal["adaptive"] = 4
    content_variants: int = 8
    budget_ms: float | None = None
    votes: Literal["hard", "soft"] = "soft"
    style: Literal["gaussian", "mixstyle", "swap"] = "swap"
    delta: Literal["channel", "global"] = "channel"
    components: perturb.Components = "both"
    style_scale: float = 1.0
    content_scale: float = 1.0
    noise: Literal["antithetic", "independent"] = "antithetic"
    relaxation: Literal["printed", "none", "guard"] = "guard"
    temper: bool = True
    layer: str = "stem"
    content_layer: str = "auto"
    norm: Literal["frozen", "batch"] = "batch"
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
            budget_ms=1.0 if self.budget_ms is None else self.budget_ms,
        )
        if self.budget_ms is not None and self.variants == "adaptive":
            raise OptionError(
                '`variants` "adaptive" and `budget_ms` both say how many variants to take; leave one out.'
            )
        self.engine_options()
        if not self.members:
            raise OptionError(f"`members` must name at least one of {', '.join(NAMES)}, got none.")
        if "network" not in self.witnesses:
            raise OptionError(f'`witnesses` must name the "network", got {self.witnesses}.')
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

    def engine_options(self) -> EngineOptions:
        """Return how the engine shall compute."""
        return EngineOptions(
            engine=self.engine,
            precision=self.precision,
            max_batch=self.max_batch,
            max_memory=self.max_memory,
        )
