"""SICL live, batch by batch: poll the witnesses, weigh their answers, guard against collapse."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from sicl.adapt import Adapter, Moment
from sicl.calibrate._base import Calibration
from sicl.calibrate._memory import Recent
from sicl.calibrate._passes import device_of, predicted_logits
from sicl.calibrate.sicl.anchor import Anchor
from sicl.calibrate.sicl.budget import ROUNDS, Latency, ladder, settle
from sicl.calibrate.sicl.company import Company
from sicl.calibrate.sicl.fitted import Fitted, fit_on_source, log_odds
from sicl.calibrate.sicl.information import POWER, Information
from sicl.calibrate.sicl.options import Name, Options, Who
from sicl.calibrate.sicl.questions import N_CROPS, Question
from sicl.calibrate.sicl.say import LEARNER, WINDOW, Say
from sicl.calibrate.sicl.temper import Temper
from sicl.calibrate.sicl.variants import SMALL_BATCH, Draws
from sicl.calibrate.sicl.votes import Ask, Poll, paired, standard_error
from sicl.calibrate.sicl.witnesses import witnesses_of
from sicl.engine.engine import Engine
from sicl.engine.graphs import Graphs
from sicl.engine.split import Begun
from sicl.engine.variants import Votes, predicted_probability
from sicl.errors import InputError, UnsupportedModelError
from sicl.types import SourceData

Signals = dict[str, Tensor]
Answers = dict[Who, Tensor]
"""By witness: a row for each answer to a question, a column for each sample."""
Asked = dict[Who, dict[Name, Question]]
"""Whom to ask what."""


class SiclCalibration(Calibration):
    """How far the predictions of a network survive, batch by batch.

    Args:
        spec: the configuration.
        adapter: whose network is asked.
        source: labelled source data to fit the map to correctness on.
    """

    _bought: str

    def __init__(self, spec: Options, adapter: Adapter, source: SourceData | None = None) -> None:
        self.spec = spec
        self.anchor = Anchor(adapter.network)
        self.generator = torch.Generator(device_of(adapter.network))
        self.draws = Draws(spec, self.generator)
        self.graphs = Graphs()
        self.witnesses = witnesses_of(spec, self.anchor, self.draws, self.graphs)
        self.poll = Poll([w.network for w in self.witnesses], self.graphs, self.generator)
        self.temper = Temper(self.generator.device, spec.seed)
        self.information = Information()
        self.company = Company(spec.seed)
        self.say = Say()
        self.level = Recent(WINDOW)
        self._bought = ""
        self.latency = None if spec.budget_ms is None else Latency(spec.budget_ms, ladder(spec))
        if self.latency is not None:
            self.rehearsals = 12  # what a budget buys must be found as well
        self.fitted: Fitted | None = None
        self._possible: dict[torch.Size, set[Name]] = {}
        self.reset()
        if source is not None:
            # Graphs cost more to capture than eighteen batches give back.
            engine: Any = "twin" if spec.engine == "auto" else spec.engine
            trial = replace(spec, fitted=False, budget_ms=None, engine=engine)
            self.fitted = fit_on_source(adapter, source, lambda a: SiclCalibration(trial, a), spec.seed)

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
                self._keep_to_budget()
                confidence, answers, signals = self._ask(moment)
            if self.fitted is not None and len(answers) == len(self.witnesses) and self._asks_all:
                confidence = self.fitted(self._features(confidence, answers))
            return confidence, signals

    @property
    def _asks_all(self) -> bool:
        return self.latency is None or self.latency.rung.names == self.latency.rungs[-1].names

    def _keep_to_budget(self) -> None:
        """Ask what the batch may cost; what was learnt from other questions does not hold for these."""
        if self.latency is not None and self._bought != (names := ",".join(self.latency.rung.names)):
            self.say.reset()
            self._bought = names

    def features(self, moment: Moment) -> Tensor:
        """Return what the map to correctness is fitted on (N x D)."""
        confidence, answers, _ = self._ask(moment)
        return self._features(confidence, answers)

    def _ask(self, moment: Moment) -> tuple[Tensor, Answers, Signals]:
        """Poll the witnesses and weigh their answers."""
        labels = moment.logits.argmax(dim=1)
        self.anchor.follow()
        asked, begun = self._whom(moment.images, labels)
        if self._tempers(asked):
            self.temper.observe(moment.images, labels, partial(predicted_logits, moment.network))
        votes, begun = self._poll(asked, begun, moment.images, labels)
        answers, errors, signals = self._answers(asked, votes, moment.logits, labels)
        self.information.observe(moment.logits, partial(self._others, asked, moment.images, begun))
        # 1 if the network tells apart no classes where the anchor does.
        signals["collapse"] = (1 - 1 / self.information.ratio("anchor", moment.logits)).clamp_min(0.0)
        confidence, error = self._weigh(answers, errors, signals)
        if self.spec.relaxation == "printed":
            content = votes[asked["network"]["content"]]
            kept, doubt = 1 - content.mean(self.spec.votes), self._error(content)
            confidence, error = confidence * kept, torch.hypot(error * kept, confidence * doubt)
        if self.latency is not None:
            bought = sum(len(seen) for question, seen in votes.items() if question.name == "style")
            signals["variants"] = torch.tensor(float(bought))
        return confidence, answers, {**signals, "error": error}

    def _tempers(self, asked: Asked) -> bool:
        return self.spec.temper and self._counts_itself(asked)

    def _counts_itself(self, asked: Asked) -> bool:
        """Whether the network's softmax is an answer: if it shall be, or if there is no other."""
        return "softmax" in self.spec.members or not asked["network"]

    def _features(self, confidence: Tensor, answers: Answers) -> Tensor:
        """Log-odds of the confidence and of every answer, and the mean of the first over the recent stream."""
        rows = log_odds(torch.cat([confidence.unsqueeze(0), *answers.values()]).T)
        self.level.add(rows[:, :1])
        level = self.level.values().mean(dim=0)
        return torch.cat([rows, level.expand(len(rows), 1)], dim=1)

    def _whom(self, images: Tensor, labels: Tensor) -> tuple[Asked, dict[Engine, Begun]]:
        """Whom to ask what, and the batch as those have begun it that need company for it."""
        dependent = any(witness.in_company is not None for witness in self.witnesses)
        company = self.company.beside(images, labels) if dependent else None
        possible = self._can_be_asked(images)
        if self.latency is not None:
            possible = possible & set(self.latency.rung.names)
        begun: dict[Engine, Begun] = {}
        asked: Asked = {}
        for witness in self.witnesses:
            # By their own statistics a few images say nothing, and nor do images of one class beside others.
            if witness.name == "batch" and (company is not None) != (len(images) < SMALL_BATCH):
                continue
            asked[witness.name] = witness.questions
            if witness.in_company is None or company is None or not possible:
                continue
            try:
                begun |= witness.begin_in_company(images, company)
                asked[witness.name] = witness.in_company
            except UnsupportedModelError:
                # Statistics of a few rows can be too ill-conditioned to keep; the network still answers.
                if witness.name == "batch":
                    del asked[witness.name]
        asked = {who: {n: q for n, q in all_.items() if n in possible} for who, all_ in asked.items()}
        return {who: some for who, some in asked.items() if some or who == "network"}, begun

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

    def _poll(
        self, asked: Asked, begun: dict[Engine, Begun], images: Tensor, labels: Tensor
    ) -> tuple[dict[Question, Votes], dict[Engine, Begun]]:
        """Put all questions to all witnesses; as often as the batch needs, if that is asked."""
        counts = self._counts(len(asked))
        asks = [Ask(q, counts[name]) for questions in asked.values() for name, q in questions.items()]
        if not asks:
            return {}, begun
        adaptive, one = self.spec.variants == "adaptive", torch.ones((), device=labels.device)
        others = [
            question
            for who, questions in asked.items()
            if who != "network"
            for question in questions.values()
        ]
        wanted = [ask.question for ask in asks] if adaptive else others
        polled = self.poll(
            asks,
            images,
            labels,
            one,
            begun=begun,
            keep=tuple(dict.fromkeys(question.engine for question in wanted)),
            # What depends on values, or on batches before, cannot be replayed.
            steady=self.spec.style != "mixstyle" and len(labels) >= SMALL_BATCH,
        )
        votes = polled.by_question()
        if adaptive:
            drawn = {question: seen for question, seen in votes.items() if question.drawn}

            def more(counts: Mapping[Question, int]) -> dict[Question, Votes]:
                again = [Ask(question, n) for question, n in counts.items()]
                return self.poll.again(again, polled, labels, one).by_question()

            votes |= settle(drawn, more, self.spec.votes)
        style = next((seen for q, seen in polled.known.items() if q.name == "style"), None)
        if style is not None:
            self.draws.styles.add(style)
        return votes, polled.begun

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
        return {"mirror": 1, "crop": N_CROPS, "style": style, "content": content}

    def _answers(
        self, asked: Asked, votes: dict[Question, Votes], logits: Tensor, labels: Tensor
    ) -> tuple[Answers, Answers, Signals]:
        """Each witness's answers and their standard errors; each question's mean is a signal."""
        signals = {"softmax": predicted_probability(logits, labels)}
        own = signals["softmax"]
        if self._tempers(asked):
            own, signals["temperature"] = self.temper.confidence(logits, labels), self.temper.temperature
        answers, errors = {}, {}
        for witness, questions in asked.items():
            known = witness == "network" and self._counts_itself(asked)
            rows, doubts = ([own], [torch.zeros_like(own)]) if known else ([], [])
            for name, question in questions.items():
                seen = votes[question].of(self.spec.votes)
                mean = seen.mean(dim=0)
                signals[f"{name}_invariance" if witness == "network" else f"{witness}_{name}"] = mean
                if name not in self.spec.members:
                    continue
                if question.drawn:
                    rows.append(mean)
                    doubts.append(self._error(votes[question]))
                else:
                    rows.extend(seen)
                    doubts.extend(torch.zeros_like(seen))
            answers[witness], errors[witness] = torch.stack(rows), torch.stack(doubts)
        return answers, errors, signals

    def _weigh(self, answers: Answers, errors: Answers, signals: Signals) -> tuple[Tensor, Tensor]:
        """Return the mean of all answers, by how much say each has, and its standard error."""
        if self.spec.say == "equal":
            rows, doubts = torch.cat(list(answers.values())), torch.cat(list(errors.values()))
            return rows.mean(dim=0), doubts.square().sum(dim=0).sqrt() / len(rows)
        self.say.observe(answers)
        shares, says = zip(*map(self.say.weights, answers))
        kept = [self._kept(who, "anchor" in answers, signals["collapse"]) for who in answers]
        say = torch.stack(says) * torch.stack(kept)
        say = say / say.sum()
        signals |= {f"say_{name}": weight for name, weight in zip(answers, say)}
        confidence, variance = 0.0 * signals["softmax"], 0.0 * signals["softmax"]
        for name, share, weight in zip(answers, shares, say):
            confidence = confidence + weight * (share @ answers[name])
            variance = variance + (weight * share).square() @ errors[name].square()
        return confidence, variance.sqrt()

    def _kept(self, who: Who, anchored: bool, collapse: Tensor) -> Tensor:
        """What a witness keeps of its say: by how many classes it tells apart beside another."""
        if who == "batch":
            return self.information.ratio(who, collapse) ** POWER
        if who == "network" and anchored:
            return LEARNER * (1 - collapse) ** (POWER if self.spec.relaxation == "guard" else 0)
        return torch.ones_like(collapse)

    def _others(self, asked: Asked, images: Tensor, begun: dict[Engine, Begun]) -> dict[Who, Tensor]:
        """What the other witnesses predict for a batch, and the anchor of every network that adapts."""
        if self.spec.say == "equal" and self.spec.relaxation != "guard":
            return {}
        found: dict[Who, Tensor] = {}
        for who, questions in asked.items():
            # An engine that has the batch begun has most of the way behind it.
            engine = next((q.engine for q in questions.values() if q.engine in begun), None)
            if who != "network" and engine is not None:
                found[who] = engine.logits(begun[engine])
        if "anchor" not in found and self.anchor.adapts:
            found["anchor"] = self.anchor.logits(images)
        return found

    def _error(self, votes: Votes) -> Tensor:
        """The standard error of each sample's mean vote; an adaptive budget gives pairs already."""
        independent = self.spec.variants == "adaptive" or self.spec.noise == "independent"
        return standard_error(votes if independent else paired(votes), self.spec.votes)

    def reset(self) -> None:
        """Forget the recent batches and start the noise anew."""
        self.generator.manual_seed(self.spec.seed)
        for part in (self.company, self.information, self.temper, self.say):
            part.reset()
        self.draws.styles.clear()
        self.level.clear()
        self._bought = ""

    def state_dict(self) -> dict[str, Any]:
        """Return the noise's state and the recent batches."""
        return {
            "generator": self.generator.get_state(),
            "styles": self.draws.styles.state_dict(),
            "information": self.information.state_dict(),
            "temper": self.temper.state_dict(),
            "company": self.company.state_dict(),
            "say": self.say.state_dict(),
            "level": self.level.state_dict(),
            "fitted": None if self.fitted is None else self.fitted.state_dict(),
            **({} if self.latency is None else {"bought": self._bought}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self.generator.set_state(state["generator"])
        self.draws.styles.load_state_dict(state["styles"])
        self.information.load_state_dict(state["information"])
        self.temper.load_state_dict(state["temper"])
        self.company.load_state_dict(state["company"])
        self.say.load_state_dict(state["say"])
        self.level.load_state_dict(state["level"])
        self._bought = state.get("bought", "")
        self.fitted = None if state["fitted"] is None else Fitted(**state["fitted"])
