"""SICL live: how far the predictions of a network survive, batch by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sicl import perturb
from sicl.adapt import Adapter, Moment
from sicl.calibrate._base import Calibration, predicted_probability
from sicl.calibrate._budget import Draw, draw_until_settled
from sicl.calibrate._draws import beta
from sicl.calibrate._engine import Engine
from sicl.calibrate._guard import Guard
from sicl.calibrate._memory import Recent
from sicl.calibrate._variants import ContentVariants, StyleVariants, Variants
from sicl.models.split import Split, logits_of

if TYPE_CHECKING:
    from sicl.calibrate.sicl import SICL

SMALL_BATCH = 16
"""Fewer samples say little about the spread over samples: remembered ones help."""


class SiclCalibration(Calibration):
    """Invariance of the network that predicts, batch by batch.

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
        self.guard = Guard(adapter.network)
        self.reset()

    def reset(self) -> None:
        """Forget the recent batches and start the noise anew."""
        self.generator.manual_seed(self.spec.seed)
        self.means.clear()
        self.guard.reset()

    def confidence(self, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean vote of the members, relaxed as the spec says, and the signals behind it."""
        labels = moment.logits.argmax(dim=1)
        signals = {"softmax": predicted_probability(moment.logits, labels)}
        features = self.engine.begin(moment.images)
        mean, std = perturb.style_statistics(features)
        self.means.add(mean)
        if "style" in self.spec.members:
            n = 20 if self.spec.variants == "adaptive" else self.spec.variants
            signals["style_invariance"] = self._invariance(self._style_draw(mean, std), labels, n)
        if self.spec.needs_content:
            draw = self._content_draw(features, std)
            signals["content_invariance"] = self._invariance(draw, labels, self.spec.content_variants)
        if "mirror" in self.spec.members:
            signals["mirror_invariance"] = self._mirror(moment, labels)
        votes = [signals[f"{member}_invariance"] for member in self.spec.members]
        return self._relaxed(torch.stack(votes).mean(dim=0), moment, labels, signals), signals

    def _relaxed(
        self, confidence: Tensor, moment: Moment, labels: Tensor, signals: dict[str, Tensor]
    ) -> Tensor:
        if self.spec.relaxation == "printed":
            return confidence * (1 - signals["content_invariance"])
        if self.spec.relaxation == "guard":
            return self.guard.relax(confidence, moment, labels, signals)
        return confidence

    def _invariance(self, draw: Draw, labels: Tensor, variants: int) -> Tensor:
        if self.spec.variants == "adaptive":
            return draw_until_settled(self.engine, draw, labels, self.spec.votes)
        return self.engine.collect(draw(variants), labels).share(self.spec.votes)

    def _mirror(self, moment: Moment, labels: Tensor) -> Tensor:
        logits = logits_of(moment.network(moment.images.flip(-1)))
        if self.spec.votes == "hard":
            return (logits.argmax(dim=1) == labels).float()
        return predicted_probability(logits, labels)

    def _style_draw(self, mean: Tensor, std: Tensor) -> Draw:
        if self.spec.style == "mixstyle":
            return self._mixstyle_draw(mean, std)
        means = mean if len(mean) >= SMALL_BATCH else self.means.values()
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
            "guard": self.guard.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self.generator.set_state(state["generator"])
        self.means.load_state_dict(state["means"])
        self.guard.load_state_dict(state["guard"])
