"""SICL live, batch by batch: poll, weigh, temper, guard."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from sicl.adapt import Adapter, Moment
from sicl.calibrate._base import Calibration
from sicl.calibrate._passes import device_of, predicted_logits
from sicl.calibrate.sicl.anchor import Anchor
from sicl.calibrate.sicl.budget import ROUNDS, settle
from sicl.calibrate.sicl.collapse import Guard
from sicl.calibrate.sicl.options import Name, SiclOptions
from sicl.calibrate.sicl.questions import questions_of
from sicl.calibrate.sicl.statistics import Replacement, fit_of, share_of
from sicl.calibrate.sicl.temper import Temper
from sicl.calibrate.sicl.variants import SMALL_BATCH, VariantDraws
from sicl.calibrate.sicl.votes import Ask, Poll, paired, standard_error
from sicl.engine.engine import Engine
from sicl.engine.graphs import Graphs
from sicl.engine.norms import batch_norms, statistics_for
from sicl.engine.split import Begun
from sicl.engine.variants import Votes, count, predicted_probability

Signals = dict[str, Tensor]
Answers = dict[Name, Votes]
Clean = Mapping[Engine, Begun]
"""The batch as engines have begun it."""


class SiclCalibration(Calibration):
    """How far the predictions of a network survive, batch by batch.

    Args:
        spec: the configuration.
        adapter: whose network is asked.
    """

    def __init__(self, spec: SiclOptions, adapter: Adapter) -> None:
        self.spec = spec
        self.anchor = Anchor(adapter.network)
        self.generator = torch.Generator(device_of(adapter.network))
        self.draws = VariantDraws(spec, self.generator)
        self.graphs = Graphs()
        own = statistics_for(spec.norm)
        self.questions = questions_of(spec, self.anchor, self.draws, self.graphs, own)
        # The same, asked by the batch's statistics: for running ones that no longer fit the stream.
        self.renewed = questions_of(spec, self.anchor, self.draws, self.graphs, "batch")
        self.poll = Poll((self.anchor.live, self.anchor.network), self.graphs, self.generator)
        self.temper = Temper(self.generator.device, spec.seed)
        self.guard = Guard(self.anchor)
        self.replacement = Replacement(
            batch_norms(adapter.network), spec.seed, wanted=spec.replaces_statistics
        )
        self.reset()

    @property
    def engine(self) -> Engine:
        """What computes style variants."""
        return self.questions["style"].engine

    def confidence(self, moment: Moment) -> tuple[Tensor, Signals]:
        """Return the mean vote on each prediction, tempered and guarded, and the signals behind it."""
        device = moment.images.device
        # Streams, graphs and kernels belong to the current device.
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            labels = moment.logits.argmax(dim=1)
            self.anchor.follow()
            temperature = self.temperature(moment, labels)
            votes, signals, begun = self.ask(moment.images, labels, temperature)
            signals["softmax"] = predicted_probability(moment.logits, labels)
            confidence, error = self.weigh(votes, signals)
            if self.spec.temper:
                signals["temperature"] = self.temper.temperature
                confidence, error = self.temper.join(confidence, error, moment.logits, labels)
            if self.spec.relaxation == "guard":
                level, anchored = self.guard.observe(labels, lambda: self._anchored(moment.images, begun))
                signals["collapse"] = level
                if anchored is not None:
                    signals["anchor"] = anchored
                    confidence, error = (1 - level) * confidence + level * anchored, (1 - level) * error
            return confidence, {**signals, "error": error}

    def temperature(self, moment: Moment, labels: Tensor) -> Tensor:
        """Look at mixed images, if it is time; return the temperature of the votes."""
        if not self.spec.temper:
            return torch.ones((), device=labels.device)
        engine = self.engine

        def logits(images: Tensor) -> Tensor:
            # An engine that keeps the clean batch's statistics does not normalise as the network does.
            if engine.split.statistics == "frozen" and engine.split.batch_dependent():
                return predicted_logits(moment.network, images)
            return engine.logits(engine.begin(images))

        self.temper.observe(moment.images, labels, logits)
        return self.temper.votes_at()

    def ask(self, images: Tensor, labels: Tensor, temperature: Tensor) -> tuple[Answers, Signals, Clean]:
        """Ask all questions, by the statistics that fit the stream; as often as the batch needs, if that is asked."""
        answered, signals, share, begun = self._fit(images, labels, temperature)
        asks = self.asks({name: n for name, n in self.counts().items() if name not in answered}, share)
        adaptive = self.spec.variants == "adaptive"
        wanted = {ask.question.engine: None for ask in asks} if adaptive else {}
        if self.spec.relaxation == "guard":
            wanted[self.questions["content"].engine] = None
        # What depends on values, or on batches before, cannot be replayed.
        steady = len(labels) >= SMALL_BATCH and not self.replacement.possible
        polled = self.poll(
            asks,
            images,
            labels,
            temperature,
            begun=begun,
            keep=tuple(wanted),
            steady=steady and self.spec.style != "mixstyle",
        )
        votes = answered | polled.by_name()
        if adaptive:
            drawn = {name: seen for name, seen in votes.items() if self.questions[name].drawn}

            def more(counts: Mapping[Name, int]) -> Answers:
                return self.poll.again(self.asks(counts, share), polled, labels, temperature).by_name()

            votes |= settle(drawn, more, self.spec.votes)
        style = next((seen for question, seen in polled.known.items() if question.name == "style"), None)
        if style is not None:
            self.draws.styles.add(style)
        return votes, signals, polled.begun

    def _fit(
        self, images: Tensor, labels: Tensor, temperature: Tensor
    ) -> tuple[Answers, Signals, float, Clean]:
        """Ask the mirror whether running statistics fit; return its votes, the share of the batch's own, the batch."""
        if not self.replacement.observe(labels):
            return {}, {}, 0.0, {}
        mirror = self.renewed["mirror"]
        clean = mirror.engine.begin(images)
        mirrored = mirror.engine.logits(clean, mirror.draw(clean, mirror.look(clean), 1, 1.0))
        fit = fit_of(mirrored[0], mirror.engine.logits(clean), labels)
        votes: Answers = {"mirror": count(mirrored, labels, temperature)}
        return votes, {"fit": fit}, share_of(fit), {mirror.engine: clean}

    def counts(self) -> dict[Name, int]:
        """How many variants each question begins with."""
        style, content = self.spec.variants, self.spec.content_variants
        if style == "adaptive":
            style = content = ROUNDS[0]
        counts: dict[Name, int] = {"style": style, "content": content, "mirror": 1}
        return {name: counts[name] for name in self.spec.asked}

    def asks(self, counts: Mapping[Name, int], share: float) -> list[Ask]:
        """What to ask so many times, a share of it by the batch's statistics."""
        others = {name: round(share * n) for name, n in counts.items()}
        asks = [Ask(self.questions[name], n - others[name]) for name, n in counts.items()]
        asks += [Ask(self.renewed[name], n) for name, n in others.items()]
        return [ask for ask in asks if ask.n > 0]

    def weigh(self, votes: Answers, signals: Signals) -> tuple[Tensor, Tensor]:
        """Return the mean vote of the members and its standard error; each question's mean becomes a signal."""
        kind = self.spec.votes
        means = {name: seen.mean(kind) for name, seen in votes.items()}
        signals |= {f"{name}_invariance": mean for name, mean in means.items()}
        errors = {name: standard_error(self._observed(seen), kind) for name, seen in votes.items()}
        members = self.spec.members
        confidence = torch.stack([means[name] for name in members]).mean(dim=0)
        error = torch.stack([errors[name] for name in members]).square().sum(dim=0).sqrt() / len(members)
        if self.spec.relaxation == "printed":
            rest = 1 - means["content"]
            return confidence * rest, torch.hypot(error * rest, confidence * errors["content"])
        return confidence, error

    def _observed(self, votes: Votes) -> Votes:
        """Votes that count as independent: an adaptive budget gives pairs already."""
        independent = self.spec.variants == "adaptive" or self.spec.noise == "independent"
        return votes if independent else paired(votes)

    def _anchored(self, images: Tensor, begun: Clean) -> Tensor:
        """The anchor's logits; an engine that has the batch begun has most of the way behind it."""
        engine = self.questions["content"].engine
        if engine in begun and engine.split.network is self.anchor.network:
            return engine.logits(begun[engine])
        return self.anchor.logits(images)

    def reset(self) -> None:
        """Forget the recent batches and start the noise anew."""
        self.generator.manual_seed(self.spec.seed)
        self.draws.styles.clear()
        self.replacement.reset()
        self.guard.reset()
        self.temper.reset()

    def state_dict(self) -> dict[str, Any]:
        """Return the noise's state and the recent batches."""
        return {
            "generator": self.generator.get_state(),
            "styles": self.draws.styles.state_dict(),
            "guard": self.guard.state_dict(),
            "temper": self.temper.state_dict(),
            "replacement": self.replacement.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self.generator.set_state(state["generator"])
        self.draws.styles.load_state_dict(state["styles"])
        self.guard.load_state_dict(state["guard"])
        self.temper.load_state_dict(state["temper"])
        self.replacement.load_state_dict(state["replacement"])
