"""A poll: all votes on a batch, on a GPU as one captured graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sicl.calibrate.sicl.questions import Question, Strength, views_of
from sicl.engine.engine import Engine
from sicl.engine.graphs import Graphs, Lanes
from sicl.engine.split import Begun
from sicl.engine.variants import Votes, joined, together

_MOST_SHAPES = 4


@dataclass(frozen=True)
class Ask:
    """A question to ask of a batch: how often, and how hard.

    Args:
        question: what to ask.
        n: how many variants.
        strength: how hard to perturb; a tensor may change from batch to batch, a number belongs to the poll.
    """

    question: Question
    n: int
    strength: Strength = 1.0


@dataclass(frozen=True)
class Polled:
    """What a poll gave.

    Args:
        asks: what was asked.
        together: the votes on all asks, one after the other.
        sizes: how many there are on each.
        known: what each question that draws its variants saw of the clean batch.
        begun: the clean batch, for the engines that may be asked again.
        read: what the caller made of the votes.
    """

    asks: list[Ask]
    together: Votes
    sizes: list[int]
    known: dict[Question, Tensor]
    begun: dict[Engine, Begun] = field(default_factory=dict)
    read: Any = None

    @property
    def votes(self) -> list[Votes]:
        """The votes on each of the asks, in their order."""
        return self.together.split(self.sizes)

    def by_question(self) -> dict[Question, Votes]:
        """Return the votes on each question."""
        return {ask.question: votes for ask, votes in zip(self.asks, self.votes)}


class Poll:
    """Asks questions of batches; from the second batch of a shape on, a GPU replays the poll as one graph.

    Args:
        networks: that the questions are about.
        graphs: of the engines.
        generator: that variants are drawn from.
    """

    def __init__(self, networks: Iterable[nn.Module], graphs: Graphs, generator: torch.Generator) -> None:
        modules = [module for network in networks for module in network.modules()]
        self._graphs = graphs
        reads = [table for m in modules for table in (m._parameters, m._buffers)]
        self.captures = graphs.captures("a whole poll", reads, most=_MOST_SHAPES, generator=generator)

    def __call__(
        self,
        asks: list[Ask],
        images: Tensor,
        labels: Tensor,
        temperature: Tensor,
        *,
        keep: tuple[Engine, ...] = (),
        steady: bool = True,
        read: Callable[..., Any] | None = None,
        beside: tuple[Tensor, ...] = (),
    ) -> Polled:
        """Return the votes on a batch.

        Args:
            asks: what to ask; what goes to one engine goes through the network at once.
            images: the batch.
            labels: the predicted classes that are voted on.
            temperature: of the soft votes.
            keep: the engines whose begun batch is wanted, to ask again.
            steady: whether nothing that is done depends on values or on batches before, as a graph needs it.
            read: makes something of the votes by question, the labels, the temperature and what is `beside`, as part
                of the graph.
            beside: more tensors to read.
        """
        engines = dict.fromkeys(ask.question.engine for ask in asks)
        states = [engine.captured_as(images) for engine in engines]

        def function(tensors: list[Tensor]) -> Polled:
            images, labels, temperature, *others = tensors
            now = _with_strengths(asks, others[len(beside) :])
            seen = _ask(now, images, labels, temperature, {}, {}, self._graphs.lanes)
            kept = {e: replace(b, features=b.base) for e, b in seen.begun.items() if e in keep}
            made = read and read(seen.by_question(), labels, temperature, *others[: len(beside)])
            return replace(seen, begun=kept, read=made)

        strengths = [ask.strength for ask in asks if isinstance(ask.strength, Tensor)]
        inputs = [images, labels, temperature, *beside, *strengths]
        if not steady or None in states:
            return function(inputs)
        numbers = [(a.question, a.n, None if isinstance(a.strength, Tensor) else a.strength) for a in asks]
        shapes = tuple(tuple(tensor.shape) for tensor in inputs)
        key = (shapes, keep, read is None, *numbers, *states)
        return self.captures(key, function, inputs)

    def again(self, asks: list[Ask], before: Polled, labels: Tensor, temperature: Tensor) -> Polled:
        """Return more votes on a batch whose engines were kept, by other variants."""
        images = next(iter(before.begun.values())).images
        return _ask(asks, images, labels, temperature, dict(before.begun), dict(before.known), lanes=False)


def _with_strengths(asks: list[Ask], strengths: list[Tensor]) -> list[Ask]:
    left = iter(strengths)
    return [replace(a, strength=next(left)) if isinstance(a.strength, Tensor) else a for a in asks]


def _ask(
    asks: list[Ask],
    images: Tensor,
    labels: Tensor,
    temperature: Tensor,
    begun: dict[Engine, Begun],
    known: dict[Question, Tensor],
    lanes: bool,
) -> Polled:
    engines = list(dict.fromkeys(ask.question.engine for ask in asks))
    # First, since lanes read only what was there before them.
    known |= views_of(images, [ask.question for ask in asks])
    streams = Lanes(images.device, open_=lanes and _has_room(engines, asks, len(images)))
    votes: dict[int, Votes] = {}
    for engine in engines:
        numbers = [i for i, ask in enumerate(asks) if ask.question.engine is engine]
        # The first engine's work stays in line; that of others runs beside it.
        with streams.of(None if engine is engines[0] else engine):
            if engine not in begun:
                kept = asks[numbers[0]].question.kept
                begun[engine] = engine.begin(images, None if kept is None else kept.of())
            parts = _put([asks[i] for i in numbers], begun[engine], labels, temperature, known)
        votes.update(zip(numbers, parts))
    streams.join()
    drawn = {question: seen for question, seen in known.items() if question.drawn}
    parts = [votes[i] for i in range(len(asks))]
    return Polled(asks, joined(parts), [len(part) for part in parts], drawn, begun)


def _put(
    asks: list[Ask], clean: Begun, labels: Tensor, temperature: Tensor, known: dict[Question, Tensor]
) -> list[Votes]:
    """Put questions to one engine: all at once, but in company each by statistics of its own."""
    for question in (ask.question for ask in asks):
        if question not in known:
            known[question] = question.look(clean)
    described = [(ask.question, (clean, known[ask.question], ask.n, ask.strength)) for ask in asks]
    vote = partial(asks[0].question.engine.votes, labels=labels, temperature=temperature)
    if asks[0].question.kept is not None:
        return [joined([vote(*part) for part in question.in_company(*how)]) for question, how in described]
    drawn = [question.draw(*how) for question, how in described]
    return vote(clean, together(drawn)).split([len(variants) for variants in drawn])


def _has_room(engines: list[Engine], asks: list[Ask], rows: int) -> bool:
    """Say whether two engines may compute at once within the memory that one may take."""
    sent = {engine: sum(ask.n for ask in asks if ask.question.engine is engine) for engine in engines}
    return all(engine.has_room((n + 1) * rows, share=0.5) for engine, n in sent.items())


def paired(votes: Votes) -> Votes:
    """Return the means of a half of the votes and its opposite, which count as one observation."""
    if len(votes) % 2 or len(votes) < 4:
        return votes
    half = (2, len(votes) // 2, -1)
    return Votes(*(kind.reshape(half).mean(dim=0) for kind in votes.kinds))


def standard_error(votes: Votes, kind: Literal["hard", "soft"]) -> Tensor:
    """Return the standard error of each sample's mean vote; 0 where there is a single vote."""
    seen = votes.of(kind)
    return (seen.var(dim=0) / len(seen)).sqrt() if len(seen) > 1 else torch.zeros_like(seen[0])
