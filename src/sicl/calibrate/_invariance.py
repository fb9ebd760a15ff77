"""SICL live: how far the predictions of a network survive, batch by batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sicl import perturb
from sicl.adapt import Adapter, Moment
from sicl.calibrate._attached import Attached
from sicl.calibrate._base import Calibration, predicted_probability
from sicl.calibrate._budget import Draw, draw_until_settled
from sicl.calibrate._draws import beta
from sicl.calibrate._engine import Engine
from sicl.calibrate._guard import Guard
from sicl.calibrate._members import MEMBERS, Along, Engines, Member
from sicl.calibrate._memory import Recent
from sicl.calibrate._mixed import Mixed
from sicl.calibrate._temper import Temper
from sicl.calibrate._variants import Collector, ContentVariants, StyleVariants, Variants
from sicl.models.norms import batch_norms, is_plain, uses_batch_statistics

if TYPE_CHECKING:
    from sicl.calibrate.sicl import SICL

Features = dict[str, Tensor]
"""What stands at the cuts, by the member that looks there."""
Draws = dict[str, tuple[Collector, Draw]]
"""What computes and what draws the variants behind a signal, by its name."""

SMALL_BATCH = 16
"""Fewer samples say little about the spread over samples: remembered ones help."""
FIT = 0.55
"""When fewer predictions survive the batch's own statistics, the running ones no longer fit the stream."""


class SiclCalibration(Calibration):
    """Invariance of the network that predicts, batch by batch.

    Args:
        spec: the configuration.
        adapter: whose network is perturbed.
    """

    def __init__(self, spec: SICL, adapter: Adapter) -> None:
        self.spec = spec
        self.attached = Attached(adapter.network)
        self.own = Engines.of(spec, self.attached, fresh=False)
        self.renewed: Engines | None = None
        self.used = self.own
        self._asked: tuple[Member, ...] = tuple(
            m for m in MEMBERS if m in spec.members or (m == "content" and spec.needs_content)
        )
        self._norms = batch_norms(adapter.network)
        parameter = next(iter(adapter.network.parameters()), None)
        self.generator = torch.Generator(parameter.device if parameter is not None else "cpu")
        self.styles = Recent(64)
        self.guard = Guard(self.attached)
        self.temper = Temper(self.generator.device, spec.seed)
        self.mixed = Mixed(spec.seed)
        self.reset()

    @property
    def engine(self) -> Engine:
        """What computed the last style variants."""
        return self.used.style

    @property
    def content_engine(self) -> Engine:
        """What computed the last content variants."""
        return self.used.content

    def reset(self) -> None:
        """Forget the recent batches and start the noise anew."""
        self.generator.manual_seed(self.spec.seed)
        self.styles.clear()
        self.mixed.reset()
        self.guard.reset()
        self.temper.reset()

    def confidence(self, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean vote of the members, relaxed as the spec says, and the signals behind it."""
        labels = moment.logits.argmax(dim=1)
        signals = {"softmax": predicted_probability(moment.logits, labels)}
        if self.spec.temper:
            self.temper.observe(moment, labels)
            signals["temperature"] = self.temper.temperature
        self.used, features = self._begin(moment, labels, signals)
        self._ask(moment, labels, features, signals)
        votes = [signals[f"{member}_invariance"] for member in self.spec.members]
        confidence = torch.stack(votes).mean(dim=0)
        if self.spec.temper:
            confidence = self.temper.join(confidence, moment, labels)
        return self._relaxed(confidence, moment, labels, signals), signals

    def _relaxed(
        self, confidence: Tensor, moment: Moment, labels: Tensor, signals: dict[str, Tensor]
    ) -> Tensor:
        if self.spec.relaxation == "printed":
            return confidence * (1 - signals["content_invariance"])
        if self.spec.relaxation == "guard":
            return self.guard.relax(confidence, moment, labels, signals)
        return confidence

    def _begin(self, moment: Moment, labels: Tensor, signals: dict[str, Tensor]) -> tuple[Engines, Features]:
        """Decide whose statistics the votes use (which may take the mirror's), and run the batch up to the cuts."""
        self.attached.follow()
        if not self._renewable(labels):
            return self.own, self._features(self.own, moment.images, self._asked)
        # The mirror image is normalised with the batch's own statistics: when few predictions survive that,
        # the running statistics no longer fit the stream.
        renewed = self.renewed = self.renewed or Engines.of(self.spec, self.attached, fresh=True)
        self._features(renewed, moment.images, ("mirror",))
        mirror = renewed.mirror.collect(renewed.mirror.view(moment.images.flip(-1)), labels)
        signals["mirror_invariance"] = mirror.share(self.spec.votes)
        signals["fit"] = mirror.hard.mean()
        engines = renewed if float(signals["fit"]) < FIT else self.own
        others = tuple(member for member in self._asked if member != "mirror")
        return engines, self._features(engines, moment.images, others)

    def _renewable(self, labels: Tensor) -> bool:
        """Whether the network uses running statistics that the batch's own may stand in for."""
        if self.spec.statistics != "auto" or self.spec.norm == "frozen" or "mirror" not in self.spec.members:
            return False
        if all(map(uses_batch_statistics, self._norms)) or not all(map(is_plain, self._norms)):
            return False
        return len(labels) >= SMALL_BATCH and self.mixed.add(labels)

    def _features(self, engines: Engines, images: Tensor, members: tuple[Member, ...]) -> Features:
        """Run the clean batch up to the cuts of these members, each cut once."""
        begun: dict[Engine, Tensor] = {}
        for member in members:
            engine: Engine = getattr(engines, member)
            if engine not in begun:
                engine.temperature = self.temper.votes_at() if self.spec.temper else None
                begun[engine] = engine.begin(images)
        return {member: begun[getattr(engines, member)] for member in members}

    def _draws(self, engines: Engines, features: Features) -> Draws:
        """What draws the variants that the spec asks for, and the engine to send them through."""
        draws: Draws = {}
        if "style" in self.spec.members:
            mean, std = perturb.style_statistics(features["style"])
            self.styles.add(torch.stack([mean, std], dim=1))
            draws["style_invariance"] = engines.style, self._style_draw(mean, std)
        if self.spec.needs_content:
            _, std = perturb.style_statistics(features["content"])
            draws["content_invariance"] = engines.content, self._content_draw(features["content"], std)
        return draws

    def _ask(self, moment: Moment, labels: Tensor, features: Features, signals: dict[str, Tensor]) -> None:
        """Take all votes that are not taken yet; the mirror image goes along with its engine's first variants."""
        draws, along = self._draws(self.used, features), None
        if "mirror" in self.spec.members and "mirror_invariance" not in signals:
            along = Along(self.used.mirror, self.used.mirror.view(moment.images.flip(-1)))
            shared = next((name for name, (engine, _) in draws.items() if engine is along.engine), None)
            if shared is not None:
                draws[shared] = along, draws[shared][1]
        signals |= self._invariances(draws, labels)
        if along is not None:
            votes = along.votes or along.engine.collect(along.view, labels)
            signals["mirror_invariance"] = votes.share(self.spec.votes)

    def _invariances(self, draws: Draws, labels: Tensor) -> dict[str, Tensor]:
        if self.spec.variants == "adaptive":
            return draw_until_settled(draws, labels, self.spec.votes)
        counts = {"style_invariance": self.spec.variants, "content_invariance": self.spec.content_variants}
        return {
            name: engine.collect(draw(counts[name]), labels).share(self.spec.votes)
            for name, (engine, draw) in draws.items()
        }

    def _style_draw(self, mean: Tensor, std: Tensor) -> Draw:
        own = torch.stack([mean, std])
        pool = own if len(mean) >= SMALL_BATCH else self.styles.values().transpose(0, 1)

        def draw(n: int) -> Variants:
            change = (
                self._gaussian(n, own, pool) if self.spec.style == "gaussian" else self._mixed(n, own, pool)
            )
            if self.spec.components == "mean":
                change[1] = 0
            elif self.spec.components == "std":
                change[0] = 0
            return StyleVariants(*perturb.style_map(mean, std, change[0], change[1]))

        return draw

    def _gaussian(self, n: int, own: Tensor, pool: Tensor) -> Tensor:
        """Noise on mean and deviation (2 x n x N x C), in units of the spread of means over samples."""
        delta = self.spec.style_scale * perturb.spread(pool[0], per=self.spec.delta)
        return delta * self._noise(n, (2, *own.shape[1:])).transpose(0, 1)

    def _mixed(self, n: int, own: Tensor, pool: Tensor) -> Tensor:
        """The way toward another sample's style: all of it ("swap"), or a random part ("mixstyle")."""
        size = (n, own.shape[1])
        chance = torch.rand(size, generator=self.generator, device=own.device)
        partner = (chance * pool.shape[1]).long().clamp_max(pool.shape[1] - 1)
        change = pool[:, partner] - own.unsqueeze(1)
        if self.spec.style == "swap":
            return change
        return change * (1 - beta(self.spec.mixstyle_alpha, size, self.generator)).unsqueeze(-1)

    def _content_draw(self, features: Tensor, std: Tensor) -> Draw:
        scaled, length = self.spec.content_scale * std, perturb.block_length(features)
        return lambda n: ContentVariants(scaled, self._noise(n, (length,)))

    def _noise(self, n: int, size: tuple[int, ...]) -> Tensor:
        """Normal values for n variants: in pairs of opposite signs, unless the spec wants them independent."""
        drawn = n if self.spec.noise == "independent" else (n + 1) // 2
        noise = torch.randn((drawn, *size), generator=self.generator, device=self.generator.device)
        return noise if drawn == n else torch.cat([noise, -noise])[:n]

    def state_dict(self) -> dict[str, Any]:
        """Return the noise's state and the recent batches."""
        return {
            "generator": self.generator.get_state(),
            "styles": self.styles.state_dict(),
            "guard": self.guard.state_dict(),
            "temper": self.temper.state_dict(),
            "mixed": self.mixed.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self.generator.set_state(state["generator"])
        self.styles.load_state_dict(state["styles"])
        self.guard.load_state_dict(state["guard"])
        self.temper.load_state_dict(state["temper"])
        self.mixed.load_state_dict(state["mixed"])
