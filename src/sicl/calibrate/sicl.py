"""SICL: style invariance as a correctness likelihood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from sicl import perturb
from sicl.adapt import Adapter, Moment
from sicl.calibrate._base import Calibration, Calibrator, predicted_probability
from sicl.calibrate._budget import Draw, draw_until_settled
from sicl.calibrate._engine import Engine, EngineOptions
from sicl.calibrate._memory import Recent
from sicl.calibrate._variants import ContentVariants, StyleVariants, Variants
from sicl.errors import OptionError, require_choice, require_positive
from sicl.models.split import Split
from sicl.types import SourceData


@dataclass(frozen=True, kw_only=True)
class SICL(Calibrator):
    """Trust a prediction as far as it survives a change of style (Nam, Kim et al., WACV 2026).

    The channel statistics of shallow features are perturbed `variants` times; the share of variants that
    keep the predicted class is the confidence. Perturbing the content instead tells whether the model still
    looks at content at all (collapse).

    Args:
        variants: style variants a batch (the paper's N); "adaptive": 4 to 20, as many as a sample's confidence
            needs to settle (content variants too).
        content_variants: content variants a batch; 0 if `relaxation` is "none".
        votes: "hard": share of variants with the same class (printed); "soft": their mean probability of it.
        style: "gaussian" noise on the statistics (printed) or "mixstyle" with another sample of the batch.
        delta: the noise's unit, the spread of channel means over the batch: per "channel" or one "global".
        components: perturb "both" statistics, only the "mean" or only the "std".
        style_scale: multiple of delta.
        content_scale: multiple of the content noise.
        relaxation: "printed": times (1 - content invariance); "none"; "guard": as printed, but only as far
            as the recent predictions have collapsed onto few classes.
        layer: where to perturb ("auto", a module name, or "NAME:input").
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

    variants: int | Literal["adaptive"] = 20
    content_variants: int = 20
    votes: Literal["hard", "soft"] = "soft"
    style: Literal["gaussian", "mixstyle"] = "gaussian"
    delta: Literal["channel", "global"] = "channel"
    components: perturb.Components = "both"
    style_scale: float = 1.5
    content_scale: float = 5.0
    relaxation: Literal["printed", "none", "guard"] = "guard"
    layer: str = "auto"
    norm: Literal["frozen", "batch"] = "batch"
    mixstyle_alpha: float = 0.1
    engine: Literal["auto", "plain", "twin", "fused", "graph", "compile"] = "auto"
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
        require_choice(("hard", "soft"), votes=self.votes)
        require_choice(("gaussian", "mixstyle"), style=self.style)
        require_choice(("channel", "global"), delta=self.delta)
        require_choice(("both", "mean", "std"), components=self.components)
        require_choice(("printed", "none", "guard"), relaxation=self.relaxation)
        require_choice(("frozen", "batch"), norm=self.norm)
        self.engine_options()
        if self.relaxation != "none" and self.content_variants < 1:
            raise OptionError(
                f"`content_variants` must be > 0 with relaxation {self.relaxation!r}, got "
                f'{self.content_variants}; use relaxation="none" to go without.'
            )

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
        """Return the formula exactly as printed: hard votes, delta per channel, times (1 - content invariance)."""
        printed: dict[str, Any] = {
            "votes": "hard",
            "style_scale": 1.0,
            "content_scale": 1.0,
            "relaxation": "printed",
            "norm": "batch",
        }
        return cls(**{**printed, **changes})

    def calibration(self, adapter: Adapter, *, source: SourceData | None = None) -> Calibration:
        """Return the live calibration; source data is not used."""
        return SiclCalibration(self, adapter)


class SiclCalibration(Calibration):
    """Style invariance of the network that predicts, batch by batch.

    Args:
        spec: the configuration.
        adapter: whose network is perturbed.
    """

    def __init__(self, spec: SICL, adapter: Adapter) -> None:
        self.spec = spec
        self.engine = Engine(Split(adapter.network, spec.layer), spec.engine_options())
        parameter = next(iter(adapter.network.parameters()), None)
        self.generator = torch.Generator(parameter.device if parameter is not None else "cpu")
        self.means = Recent(64)
        self.predictions = Recent(256)
        self.reset()

    def reset(self) -> None:
        """Forget the recent batches and start the noise anew."""
        self.generator.manual_seed(self.spec.seed)
        self.means.clear()
        self.predictions.clear()

    def confidence(self, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the style invariance, relaxed as the spec says, and the signals behind it."""
        labels = moment.logits.argmax(dim=1)
        features = self.engine.begin(moment.images)
        mean, std = perturb.style_statistics(features)
        self.means.add(mean)
        self.predictions.add(moment.logits.softmax(dim=1))
        n = 20 if self.spec.variants == "adaptive" else self.spec.variants
        style = self._invariance(self._style_draw(mean, std), labels, n)
        signals = {"softmax": predicted_probability(moment.logits, labels), "style_invariance": style}
        if self.spec.content_variants == 0:
            return style, signals
        draw = self._content_draw(features, std)
        content = self._invariance(draw, labels, self.spec.content_variants)
        signals["content_invariance"] = content
        return style * self._relaxation(content, signals), signals

    def _invariance(self, draw: Draw, labels: Tensor, variants: int) -> Tensor:
        if self.spec.variants == "adaptive":
            return draw_until_settled(self.engine, draw, labels, self.spec.votes)
        return self.engine.collect(draw(variants), labels).share(self.spec.votes)

    def _relaxation(self, content: Tensor, signals: dict[str, Tensor]) -> Tensor:
        if self.spec.relaxation == "none":
            return torch.ones_like(content)
        if self.spec.relaxation == "printed":
            return 1 - content
        signals["collapse"] = collapse(self.predictions.values())
        return 1 - signals["collapse"] * content

    def _style_draw(self, mean: Tensor, std: Tensor) -> Draw:
        if self.spec.style == "mixstyle":
            return self._mixstyle_draw(mean, std)
        # A small batch says little about the spread over samples: remember recent ones.
        means = mean if len(mean) >= 16 else self.means.values()
        delta = self.spec.style_scale * perturb.spread(means, per=self.spec.delta)

        def draw(n: int) -> Variants:
            noise = delta * self._noise((2, n, *mean.shape))
            if self.spec.components == "mean":
                noise[1] = 0
            elif self.spec.components == "std":
                noise[0] = 0
            return StyleVariants(*perturb.style_map(mean, std, noise[0], noise[1]))

        return draw

    def _mixstyle_draw(self, mean: Tensor, std: Tensor) -> Draw:
        def draw(n: int) -> Variants:
            size = (n, len(mean))
            partner = torch.rand(size, generator=self.generator, device=mean.device).argsort(dim=1)
            share = beta(self.spec.mixstyle_alpha, size, self.generator)
            return StyleVariants(*perturb.mixstyle_map(mean, std, partner, share))

        return draw

    def _content_draw(self, features: Tensor, std: Tensor) -> Draw:
        scaled, length = self.spec.content_scale * std, perturb.block_length(features)
        return lambda n: ContentVariants(scaled, self._noise((n, length)))

    def _noise(self, size: tuple[int, ...]) -> Tensor:
        return torch.randn(size, generator=self.generator, device=self.generator.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the noise's state and the recent batches."""
        return {
            "generator": self.generator.get_state(),
            "means": self.means.state_dict(),
            "predictions": self.predictions.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self.generator.set_state(state["generator"])
        self.means.load_state_dict(state["means"])
        self.predictions.load_state_dict(state["predictions"])


def beta(alpha: float, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw from Beta(alpha, alpha) with a generator, as a ratio of Gamma variates (Johnk's method)."""
    device = generator.device
    out = torch.empty(size, device=device)
    missing = torch.ones(size, dtype=torch.bool, device=device)
    while bool(missing.any()):
        pair = torch.rand((2, *size), generator=generator, device=device).clamp_min(1e-12)
        # Accept x = u^(1/a), y = v^(1/a) when x + y <= 1; work with logs, since 1/a may be large.
        logs = pair.log() / alpha
        total = logs.logsumexp(dim=0)
        accepted = missing & (total <= 0)
        out = torch.where(accepted, (logs[0] - total).exp(), out)
        missing &= ~accepted
    return out


def collapse(probabilities: Tensor) -> Tensor:
    """Return how far predictions (N x C) have collapsed onto few classes: 0 healthy, 1 all on one class.

    With K the effective number of predicted classes, exp(entropy of the mean prediction), and K0 = min(C, N):
    nothing as long as K is at least half of K0, growing linearly to 1 as K falls to 1.
    """
    mean = probabilities.mean(dim=0)
    effective: Tensor = torch.special.entr(mean).sum().exp()
    expected = min(probabilities.shape) / 2
    return ((expected - effective) / max(expected - 1, 1e-6)).clamp(0.0, 1.0)
