"""SICL live, batch by batch: poll the witnesses, weigh their answers, guard against collapse."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sicl.adapt import Adapter, Moment
from sicl.calibrate._base import Calibration
from sicl.calibrate._memory import Recent
from sicl.calibrate._passes import device_of, is_due, predicted_logits
from sicl.calibrate.sicl.anchor import Anchor
from sicl.calibrate.sicl.budget import ROUNDS, Latency, counts, ladder, settle
from sicl.calibrate.sicl.company import Company
from sicl.calibrate.sicl.fitted import Fitted, fit_on_source, log_odds
from sicl.calibrate.sicl.information import (
    POWER,
    AnswerName,
    Answers,
    Information,
    Told,
    collapse,
    mean_count,
    pooled,
    sums_of,
    within,
)
from sicl.calibrate.sicl.kept import Kept
from sicl.calibrate.sicl.options import Name, Options, Who
from sicl.calibrate.sicl.questions import Question
from sicl.calibrate.sicl.temper import Temper
from sicl.calibrate.sicl.variants import SMALL_BATCH, Draws
from sicl.calibrate.sicl.votes import Ask, Poll, paired, standard_error
from sicl.calibrate.sicl.witnesses import Witness, witnesses_of
from sicl.engine.engine import Engine
from sicl.engine.graphs import Graphs
from sicl.engine.variants import Votes, count, joined, predicted_probability
from sicl.errors import InputError, UnsupportedModelError
from sicl.types import SourceData

Signals = dict[str, Tensor]
Asked = dict[Who, dict[Name, Question]]
"""Whom to ask what."""
Layout = tuple[tuple[Who, Name, int, bool], ...]
"""Whose variants of what question stand where, how many, and whether they are drawn."""


@dataclass(frozen=True)
class Read:
    """What is read from the votes on a batch.

    Args:
        answers: of the witnesses.
        means: Q x N, the mean vote on each question, member or not.
        softmax: N, the network's own probability of what it predicts.
    """

    answers: Answers
    means: Tensor
    softmax: Tensor


LEVEL = 512
"""How many recent samples say how hard the stream is, to the map fitted on source data."""
EVERY = 4
"""An anchor that is no witness is looked at on every fourth batch, and more often at the start."""


class SiclCalibration(Calibration):
    """How far the predictions of a network survive, batch by batch.

    Args:
        spec: the configuration.
        adapter: whose network is asked.
        source: labelled source data to fit the map to correctness on.
    """

    def __init__(self, spec: Options, adapter: Adapter, source: SourceData | None = None) -> None:
        self.spec, self._adjusted = spec, adapter.adjusts
        self.anchor = Anchor(adapter.network)
        self.generator = torch.Generator(device_of(adapter.network))
        self.draws = Draws(spec, self.generator)
        self.graphs = Graphs()
        self.witnesses = witnesses_of(spec, self.anchor, self.draws, self.graphs)
        for engine in dict.fromkeys(q.engine for w in self.witnesses for q in w.questions.values()):
            engine.prepare()
        self.poll = Poll([w.network for w in self.witnesses], self.graphs, self.generator)
        self.temper = Temper(self.generator.device, spec.seed)
        self.information, self.anchored = Information(), Information()
        self.company = Company(spec.seed)
        self.level = Recent(LEVEL)
        self.latency = None if spec.budget_ms is None else Latency(spec.budget_ms, ladder(spec))
        if self.latency is not None:
            self.rehearsals = 12  # what a budget buys must be found as well
        self.fitted: Fitted | None = None
        self._possible: dict[torch.Size, set[Name]] = {}
        self._layouts: dict[Layout, tuple[tuple[AnswerName, ...], Tensor]] = {}
        self._owners: dict[tuple[AnswerName, ...], Tensor] = {}
        self.reset()
        if source is not None:
            # Graphs cost more to capture than eighteen batches give back.
            level: Any = "twin" if spec.engine == "auto" else spec.engine
            trial = replace(spec, fitted=False, budget_ms=None, engine=level)
            self.fitted = fit_on_source(adapter, source, lambda a: SiclCalibration(trial, a), spec.seed)

    @property
    def _kept(self) -> dict[Who, Kept]:
        return {witness.name: witness.kept for witness in self.witnesses if witness.kept is not None}

    @property
    def engine(self) -> Engine | None:
        """What computes the variants of the network that predicts; None if it is asked nothing."""
        return next((question.engine for question in self.witnesses[0].questions.values()), None)

    def confidence(self, moment: Moment) -> tuple[Tensor, Signals]:
        """Return the weighed answers about each prediction, and the signals behind them."""
        device = moment.images.device
        # Streams, graphs and kernels belong to the current device.
        with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            with nullcontext() if self.latency is None else self.latency.spent_on(moment.images):
                confidence, answers, signals = self._ask(moment)
            if self.fitted is not None and self._all_answer(answers):
                confidence = self.fitted(self._features(confidence, answers))
            return confidence, signals

    def _all_answer(self, answers: Answers) -> bool:
        """Whether all witnesses answered all questions: what the map was fitted on."""
        asked = self.latency is None or self.latency.rung.names == self.latency.rungs[-1].names
        return asked and len(answers.whose) == len(self.witnesses)

    def features(self, moment: Moment) -> Tensor:
        """Return what the map to correctness is fitted on (N x D)."""
        confidence, answers, _ = self._ask(moment)
        return self._features(confidence, answers)

    def _ask(self, moment: Moment) -> tuple[Tensor, Answers, Signals]:
        """Poll the witnesses and weigh their answers."""
        labels = moment.logits.argmax(dim=1)
        asked = self._whom(moment.images)
        if self.spec.temper:
            self.temper.observe(moment.images, labels, partial(self._predicted, asked["network"]))
        temperature = self._temperature(asked)
        votes, read = self._poll(asked, moment, labels, temperature)
        answers, signals = read.answers, self._signals(asked, read, temperature)
        confidence, error, weighed = self._weigh(answers, moment)
        signals |= weighed
        if self.spec.relaxation == "printed":
            content = votes[asked["network"]["content"]]
            kept, doubt = 1 - content.mean(self.spec.votes), self._error(content)
            confidence, error = confidence * kept, torch.hypot(error * kept, confidence * doubt)
        if self.latency is not None:
            bought = sum(len(seen) for question, seen in votes.items() if question.name == "style")
            signals["variants"] = torch.tensor(float(bought))
        return confidence, answers, {**signals, "error": error}

    def _temperature(self, asked: Asked) -> Tensor:
        """At what temperature all are heard: above 1 halfway, in logarithms, to the one that fits mixed images.

        Those are harder than the stream's, so it errs upward only: one below 1 is taken as it is. So is that of a
        softmax alone, which no other answer lowers.
        """
        fits = self.temper.temperature
        return torch.minimum(fits, fits.sqrt()) if asked["network"] else fits

    def _counts_itself(self, asked: Asked) -> bool:
        """Whether the softmax is an answer: if it shall be and is the network's own, or if there is no other.

        What a method makes of the network's logits (LAME, ROID), or trains on these very images where an anchor can be
        asked (TENT), is its claim, however sure: the network and its anchor testify.
        """
        own = not self._adjusted and not (self.anchor.adapts and "anchor" in asked)
        return ("softmax" in self.spec.members and own) or not asked["network"]

    def _features(self, confidence: Tensor, answers: Answers) -> Tensor:
        """Log-odds of the confidence and of every answer, and the mean of the first over the recent stream."""
        rows = log_odds(torch.cat([confidence.unsqueeze(0), answers.votes]).T)
        self.level.add(rows[:, :1])
        level = self.level.values().mean(dim=0)
        return torch.cat([rows, level.expand(len(rows), 1)], dim=1)

    def _whom(self, images: Tensor) -> Asked:
        """Whom to ask what: in company where the batch needs it."""
        dependent = any(witness.in_company is not None for witness in self.witnesses)
        company = self.company.beside(images) if dependent else None
        possible = self._can_be_asked(images)
        if self.latency is not None:
            possible = possible & set(self.latency.rung.names)
        asked: Asked = {}
        for witness in self.witnesses:
            if company is not None and witness.in_company and self._meets(witness, company):
                asked[witness.name] = witness.in_company
            # By their own statistics a few images say nothing.
            elif witness.name == "network" or not witness.dependent or len(images) >= SMALL_BATCH:
                asked[witness.name] = witness.questions
        asked = {who: {n: q for n, q in all_.items() if n in possible} for who, all_ in asked.items()}
        return {who: some for who, some in asked.items() if some or who == "network"}

    def _meets(self, witness: Witness, company: Tensor) -> bool:
        """Let a witness meet the company if that has changed; say whether it could keep its statistics."""
        assert witness.kept is not None
        if self.company.stale or not witness.kept:
            try:
                witness.meet(company, self._can_be_asked(company))
            except UnsupportedModelError:
                # They can be too ill-conditioned; the network still answers by others.
                witness.kept.reset()
        return len(witness.kept) > 0

    def _can_be_asked(self, images: Tensor) -> set[Name]:
        """The questions that can be asked of images of this shape; if there is none, that is said once."""
        shape = images.shape[1:]
        if shape in self._possible:
            return self._possible[shape]
        found: set[Name] = set()
        for name, question in self.witnesses[0].questions.items():
            try:
                question.require(images)
                found.add(name)
            except InputError:
                if self.spec.relaxation == "printed":
                    raise
        if not found and self.spec.members != ("softmax",):
            warnings.warn(
                f"SICL can ask {type(self.anchor.live).__name__} nothing about images of shape {tuple(shape)} (no "
                "layer to cut it at, or nothing to mirror or crop): the confidence is its tempered softmax.",
                stacklevel=2,
            )
        self._possible[shape] = found
        return found

    def _predicted(self, questions: dict[Name, Question], images: Tensor) -> Tensor:
        """Return the network's logits of other images than the batch's, as fast as its variants are computed."""
        first = next(iter(questions.values()), None)
        if first is None or first.kept is not None:
            return predicted_logits(self.anchor.live, images)
        return first.engine.logits(first.engine.begin(images))

    def _poll(
        self, asked: Asked, moment: Moment, labels: Tensor, temperature: Tensor
    ) -> tuple[dict[Question, Votes], Read]:
        """Put all questions to all witnesses, as often as the batch needs if that is asked; read what they answer."""
        n = self._counts(len(asked))
        asks = [Ask(question, n[name]) for all_ in asked.values() for name, question in all_.items()]
        read = partial(self._read, asked)
        if not asks:
            return {}, read({}, labels, temperature, moment.logits)
        adaptive = self.spec.variants == "adaptive"
        polled = self.poll(
            asks,
            moment.images,
            labels,
            temperature,
            keep=tuple(dict.fromkeys(ask.question.engine for ask in asks)) if adaptive else (),
            # What depends on values, or on batches before, cannot be replayed.
            steady=self.spec.style != "mixstyle" and len(labels) >= SMALL_BATCH,
            read=None if adaptive else read,
            beside=(moment.logits,),
        )
        votes = polled.by_question()
        if adaptive:
            drawn = {question: seen for question, seen in votes.items() if question.drawn}

            by_question = {ask.question: ask for ask in asks}

            def more(counts: Mapping[Question, int]) -> dict[Question, Votes]:
                again = [replace(by_question[question], n=n) for question, n in counts.items()]
                return self.poll.again(again, polled, labels, temperature).by_question()

            votes |= settle(drawn, more, self.spec.votes)
        style = next((seen for q, seen in polled.known.items() if q.name == "style"), None)
        if style is not None:
            self.draws.styles.add(style)
        return votes, read(votes, labels, temperature, moment.logits) if adaptive else polled.read

    def _counts(self, witnesses: int) -> dict[Name, int]:
        """How many variants each question begins with, for each witness."""
        if self.latency is not None:
            return self.latency.rung.counts
        content = self.spec.content_variants
        if self.spec.variants == "adaptive":
            style = content = ROUNDS[0]
        else:
            style = self.spec.variants
            style = max(1, style // witnesses) if self.spec.say == "learnt" else style
        return counts(style, content)

    def _read(
        self, asked: Asked, votes: dict[Question, Votes], labels: Tensor, temperature: Tensor, logits: Tensor
    ) -> Read:
        """One answer for each view of the images, and one for all variants that are drawn, which differ by chance."""
        parts: list[tuple[Who, Name, Votes, bool]] = []
        if self._counts_itself(asked):
            own = count(logits.float().unsqueeze(0), labels, temperature)
            # The class it predicts it would vote for with certainty.
            parts.append(("network", "softmax", replace(own, hard=own.soft), True))
        for who, questions in asked.items():
            parts += [(who, name, votes[question], question.drawn) for name, question in questions.items()]
        seen = joined([part for *_, part, _ in parts])
        layout = tuple((who, name, len(part), drawn) for who, name, part, drawn in parts)
        if layout not in self._layouts:
            names, rows = _layout_of(layout, {*self.spec.members, "softmax"})
            self._layouts[layout] = names, rows.to(seen.soft)
            self._owners[names] = _owners_of(names).to(seen.soft.device)
        names, rows = self._layouts[layout]
        # In one product each: a GPU takes longer to be told of a small sum than to make it.
        means = rows @ seen.of(self.spec.votes)
        errors = torch.zeros_like(means[: len(names)])
        for who, name, part, drawn in parts:
            if drawn and (who, name) in names:
                errors[names.index((who, name))] = self._error(part)
        answers = Answers(names, means[: len(names)], errors, rows[: len(names)] @ sums_of(seen))
        return Read(answers, means[len(names) :], predicted_probability(logits, labels))

    def _signals(self, asked: Asked, read: Read, temperature: Tensor) -> Signals:
        """The softmax, the temperature, and the mean vote on each question."""
        signals = {"softmax": read.softmax}
        if self.spec.temper:
            signals["temperature"] = temperature
        names = [
            f"{name}_invariance" if who == "network" else f"{who}_{name}"
            for who, questions in asked.items()
            for name in questions
        ]
        return signals | dict(zip(names, read.means))

    def _weigh(self, answers: Answers, moment: Moment) -> tuple[Tensor, Tensor, Signals]:
        """Return what all answers make, its standard error, and whose say it is."""
        owners, scores = self._owners[answers.names], answers.votes.new_zeros(len(answers))
        signals = {"collapse": answers.votes.new_zeros(())}
        if self.spec.say == "learnt" or self.spec.relaxation == "guard":
            told = self.information.observe(answers)
            signals["collapse"] = self._collapse(answers, told, moment)
        if self.spec.say == "learnt":
            scores = POWER * told.clarity
            voices = self._voices(answers, scores, owners, signals["collapse"]).softmax(dim=0)
            signals |= {f"say_{who}": voice for who, voice in zip(answers.whose, voices.unbind())}
        else:
            voices = owners.sum(dim=1) / len(answers)
        return *pooled(answers, within(scores, owners), voices), signals

    def _voices(self, answers: Answers, scores: Tensor, owners: Tensor, lost: Tensor) -> Tensor:
        """Return the logarithm of how much each witness counts.

        Witnesses are compared by the root of what their answers count. A network that trains itself learns to be sure,
        right or wrong, so its clarity says nothing beside the anchor's: each has half of the say, the network what
        collapse has left of it. Without a guard all count alike.
        """
        if self.spec.relaxation != "guard":
            return scores.new_zeros(len(owners))
        if self.anchor.adapts:
            left = POWER * (1 - lost).clamp_min(1e-6).log()
            return F.pad(left.unsqueeze(0), (0, len(owners) - 1))
        return mean_count(scores, owners) / 2

    def _collapse(self, answers: Answers, told: Told, moment: Moment) -> Tensor:
        """How far the network has collapsed beside the anchor, also where that is no witness."""
        if not (self.anchor.adapts and self.anchor.comparable):
            return told.variety.new_zeros(())
        if "anchor" in answers.whose:
            return collapse(answers, told)
        few = self.anchor.dependent and len(moment.images) < SMALL_BATCH
        self._batches += not few
        if not few and is_due(self._batches - 1, EVERY):
            said = torch.stack([moment.logits, self.anchor.logits(moment.images)])
            votes = count(said, moment.logits.argmax(dim=1))
            both = Answers.of([("network", "softmax"), ("anchor", "softmax")], votes)
            self._collapsed = collapse(both, self.anchored.observe(both))
        return self._collapsed

    def _error(self, votes: Votes) -> Tensor:
        """The standard error of each sample's mean vote; an adaptive budget gives pairs already."""
        independent = self.spec.variants == "adaptive" or self.spec.noise == "independent"
        return standard_error(votes if independent else paired(votes), self.spec.votes)

    def reset(self) -> None:
        """Forget the recent batches and start the noise anew."""
        self.generator.manual_seed(self.spec.seed)
        for part in (self.company, self.information, self.anchored, self.temper):
            part.reset()
        for kept in self._kept.values():
            kept.reset()
        self.draws.styles.clear()
        self.level.clear()
        self._batches, self._collapsed = 0, torch.zeros((), device=self.generator.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the noise's state and the recent batches."""
        return {
            "generator": self.generator.get_state(),
            "styles": self.draws.styles.state_dict(),
            "information": self.information.state_dict(),
            "anchored": self.anchored.state_dict(),
            "batches": self._batches,
            "collapsed": self._collapsed,
            "temper": self.temper.state_dict(),
            "company": self.company.state_dict(),
            "kept": {who: kept.state_dict() for who, kept in self._kept.items()},
            "level": self.level.state_dict(),
            "fitted": None if self.fitted is None else self.fitted.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self.generator.set_state(state["generator"])
        self.draws.styles.load_state_dict(state["styles"])
        self.information.load_state_dict(state["information"])
        self.anchored.load_state_dict(state["anchored"])
        self._batches, self._collapsed = state["batches"], state["collapsed"]
        self.temper.load_state_dict(state["temper"])
        self.company.load_state_dict(state["company"])
        if state["kept"].keys() != self._kept.keys():
            raise InputError(f"`state` keeps statistics of {[*state['kept']]}, not of {[*self._kept]}.")
        for who, kept in self._kept.items():
            kept.load_state_dict(state["kept"][who])
        self.level.load_state_dict(state["level"])
        self.fitted = None if state["fitted"] is None else Fitted(**state["fitted"])


def _layout_of(layout: Layout, members: set[Name]) -> tuple[tuple[AnswerName, ...], Tensor]:
    """Return the names of the answers, and what averages votes: a row for each answer, then one for each question."""
    starts = [sum(n for _, _, n, _ in layout[:i]) for i in range(len(layout))]
    names: list[AnswerName] = []
    spans: list[tuple[int, int]] = []
    for start, (who, name, n, drawn) in zip(starts, layout):
        if name in members:
            names += [(who, name)] if drawn else [(who, f"{name}{i}") for i in range(n)]
            spans += [(start, n)] if drawn else [(start + i, 1) for i in range(n)]
    spans += [(start, n) for start, (_, name, n, _) in zip(starts, layout) if name != "softmax"]
    rows = torch.zeros(len(spans), sum(n for _, _, n, _ in layout))
    for row, (start, n) in zip(rows, spans):
        row[start : start + n] = 1 / n
    return tuple(names), rows


def _owners_of(names: tuple[AnswerName, ...]) -> Tensor:
    """Return whether each answer is of each witness, W x A."""
    return torch.tensor([[who == own for own, _ in names] for who in dict.fromkeys(who for who, _ in names)])
