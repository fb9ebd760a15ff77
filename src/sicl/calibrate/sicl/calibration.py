"""SICL live: how far the predictions of a network survive, batch by batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sicl import perturb
from sicl.adapt import Adapter, Moment
from sicl.calibrate._base import Calibration
from sicl.calibrate._passes import predicted_logits
from sicl.calibrate.sicl.anchor import Attached
from sicl.calibrate.sicl.budget import ROUNDS, Settling
from sicl.calibrate.sicl.casting import Cast, Casting, Kind, shared
from sicl.calibrate.sicl.collapse import Guard
from sicl.calibrate.sicl.look import Look, Looks
from sicl.calibrate.sicl.questions import MEMBERS, Engines, Member
from sicl.calibrate.sicl.statistics import Statistics
from sicl.calibrate.sicl.temper import Temper
from sicl.calibrate.sicl.variants import SMALL_BATCH, Draws
from sicl.engine.engine import Engine
from sicl.engine.graphs import Lanes
from sicl.engine.variants import count, predicted_probability

if TYPE_CHECKING:
    from sicl.calibrate.sicl.spec import SICL

Features = dict[str, Tensor]
"""What stands at the cuts, by the member that looks there."""
_DRAWN = ("style_invariance", "content_invariance")
"""The signals of variants that are drawn: as many as are asked for."""


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
        self.used = self.own
        self._asked: tuple[Member, ...] = tuple(
            m for m in MEMBERS if m in spec.members or (m == "content" and spec.needs_content)
        )
        parameter = next(iter(adapter.network.parameters()), None)
        self.generator = torch.Generator(parameter.device if parameter is not None else "cpu")
        self.draws = Draws(spec, self.generator)
        self.guard = Guard(self.attached)
        self.temper = Temper(self.generator.device, spec.seed)
        self.statistics = Statistics(spec, self.attached)
        self.looks = Looks(self.look, (self.attached.live, self.attached.network), self.generator)
        for engine in self.own.distinct():
            engine.spare = self.looks.forget
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
        self.draws.styles.clear()
        self.statistics.mixed.reset()
        self.guard.reset()
        self.temper.reset()

    def confidence(self, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean vote of the members, relaxed as the spec says, and the signals behind it."""
        device = moment.images.device
        # Streams, graphs and kernels belong to the current device.
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            return self._confidence(moment)

    def _confidence(self, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        labels = moment.logits.argmax(dim=1)
        self.attached.follow()
        if self.spec.temper:
            self.temper.observe(moment.images, labels, self._predicts(moment))
        # What depends on values, or on batches before, cannot be replayed.
        steady = (
            len(labels) >= SMALL_BATCH
            and not self.statistics.may_be_replaced
            and self.spec.style != "mixstyle"
        )
        seen = (self.looks if steady else self.look)(moment.images, moment.logits, self.temper.votes_at())
        self.used, signals = seen.engines, seen.finished()
        if seen.style is not None:
            self.draws.styles.add(seen.style)
        votes = [signals[f"{member}_invariance"] for member in self.spec.members]
        confidence = torch.stack(votes).mean(dim=0)
        if self.spec.temper:
            signals["temperature"] = self.temper.temperature
            confidence = self.temper.join(confidence, moment, labels)
        return self._relaxed(confidence, moment, labels, signals), signals

    def _relaxed(
        self, confidence: Tensor, moment: Moment, labels: Tensor, signals: dict[str, Tensor]
    ) -> Tensor:
        if self.spec.relaxation == "printed":
            return confidence * (1 - signals["content_invariance"])
        if self.spec.relaxation == "guard":
            return self.guard.relax(confidence, labels, signals, lambda: self._attached_logits(moment))
        return confidence

    def _predicts(self, moment: Moment) -> Callable[[Tensor], Tensor]:
        """What gives the network's logits of other images: an engine, if it normalises as the network does."""
        engine = self.own.style
        if self.spec.norm == "frozen" and engine.split.batch_dependent():
            return lambda images: predicted_logits(moment.network, images)

        def predict(images: Tensor) -> Tensor:
            engine.begin(moment.images)
            return engine.logits(images)

        return predict

    def _attached_logits(self, moment: Moment) -> Tensor:
        """The attached network's logits; an engine that has the batch begun has most of the way behind it."""
        if self.used is self.own and self.used.content.split.network is self.attached.network:
            return self.used.content.logits()
        return self.attached.logits(moment.images)

    def look(self, images: Tensor, logits: Tensor, temperature: Tensor) -> Look:
        """Take the votes on a batch, at a temperature; with an adaptive budget, the first round."""
        labels = logits.argmax(dim=1)
        signals = {"softmax": predicted_probability(logits, labels)}
        lanes = Lanes(images.device, open_=self._room_for_two(len(labels)))
        share, begun = self._begin(images, labels, temperature, signals, lanes)
        asked = [(who, *self._kinds(images, who, features, lanes)) for who, features in begun.items()]
        engines, style, kinds = asked[0]
        casts: list[Cast] = [Casting(who, kinds, labels, lanes) for who, _, kinds in asked]
        cast = casts[0] if len(casts) == 1 else shared(casts[0], casts[1], share)
        votes = cast({name: n for name, n in self._counts.items() if name in kinds})
        lanes.join()
        if "mirror" in begun[engines] and "mirror_invariance" not in votes:
            votes["mirror_invariance"] = engines.mirror.collect_view(images.flip(-1), labels)
        drawn, settling = {name: votes.pop(name) for name in _DRAWN if name in votes}, None
        if self.spec.variants == "adaptive" and drawn:
            settling = Settling(cast, drawn, self.spec.votes)
        else:
            votes |= drawn
        signals |= {name: seen.share(self.spec.votes) for name, seen in votes.items()}
        return Look(engines, engines.distinct(self._asked), signals, style, settling)

    @property
    def _counts(self) -> dict[str, int]:
        """How many variants of each kind a look begins with."""
        style, content = self.spec.variants, self.spec.content_variants
        if style == "adaptive":
            style = content = ROUNDS[0]
        return {"style_invariance": style, "content_invariance": content, "mirror_invariance": 1}

    def _room_for_two(self, rows: int) -> bool:
        """Whether two engines may compute at once within the memory that one may take."""
        most = max(self._counts.values())
        return all(e.has_room((most + 1) * rows, share=0.5) for e in self.own.distinct(self._asked))

    def _begin(
        self,
        images: Tensor,
        labels: Tensor,
        temperature: Tensor,
        signals: dict[str, Tensor],
        lanes: Lanes,
    ) -> tuple[float, dict[Engines, Features]]:
        """Decide whose statistics the votes use (which may take the mirror's), and run the batch up to the cuts.

        Returns:
            The share of the batch's own statistics, and who computes votes, with the features at the cuts.
        """
        asked, share, given = self._asked, 0.0, {}
        if self.statistics.in_question(labels):
            engine = self.statistics.renewed.mirror
            given = self._features(self.statistics.renewed, images, ("mirror",), temperature, lanes)
            mirrored = engine.logits(images.flip(-1))
            votes = count(mirrored.unsqueeze(0), labels, temperature)
            signals["mirror_invariance"] = votes.share(self.spec.votes)
            signals["fit"] = self.statistics.fit(engine, mirrored, labels)
            share = self.statistics.share(signals["fit"])
            asked = tuple(member for member in asked if member != "mirror")
        begun = {}
        if share < 1:
            begun[self.own] = self._features(self.own, images, asked, temperature, lanes)
        if share > 0:
            renewed = self.statistics.renewed
            begun[renewed] = self._features(renewed, images, asked, temperature, lanes, given)
        return share, begun

    def _features(
        self,
        engines: Engines,
        images: Tensor,
        members: tuple[Member, ...],
        temperature: Tensor,
        lanes: Lanes,
        given: Features | None = None,
    ) -> Features:
        """Run the clean batch up to the cuts of these members, each cut once; not up to those that are given."""
        begun: dict[Engine, Tensor] = {getattr(engines, member): f for member, f in (given or {}).items()}
        for member in members:
            engine: Engine = getattr(engines, member)
            if engine not in begun:
                engine.temperature = temperature if self.spec.temper else None
                with lanes.of(engines.lane(engine)):
                    begun[engine] = engine.begin(images)
        return {member: begun[getattr(engines, member)] for member in members}

    def _kinds(
        self, images: Tensor, engines: Engines, features: Features, lanes: Lanes
    ) -> tuple[Tensor | None, dict[str, Kind]]:
        """Return the batch's style, if it is asked about, and what votes behind a signal, by its name."""
        kinds: dict[str, Kind] = {}
        style = None
        if "style" in features:
            mean, std = perturb.style_statistics(features["style"])
            style = torch.stack([mean, std], dim=1)
            kinds["style_invariance"] = Kind(engines.style, self.draws.style(mean, std))
        if "content" in features:
            with lanes.of(engines.lane(engines.content)):
                _, std = perturb.style_statistics(features["content"])
                draw = self.draws.content(features["content"], std)
            kinds["content_invariance"] = Kind(engines.content, draw)
        if "mirror" in features and engines.mirror.resumes:
            # One variant, and the same every time.
            kinds["mirror_invariance"] = Kind(engines.mirror, lambda _n: engines.mirror.view(images.flip(-1)))
        return style, kinds

    def state_dict(self) -> dict[str, Any]:
        """Return the noise's state and the recent batches."""
        return {
            "generator": self.generator.get_state(),
            "styles": self.draws.styles.state_dict(),
            "guard": self.guard.state_dict(),
            "temper": self.temper.state_dict(),
            "mixed": self.statistics.mixed.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self.generator.set_state(state["generator"])
        self.draws.styles.load_state_dict(state["styles"])
        self.guard.load_state_dict(state["guard"])
        self.temper.load_state_dict(state["temper"])
        self.statistics.mixed.load_state_dict(state["mixed"])
