"""Who is asked about a prediction: the network as it predicts, and the anchor, which is the network as attached."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from torch import Tensor, nn

from sicl.calibrate.sicl.anchor import Anchor
from sicl.calibrate.sicl.kept import CLEAN, Kept
from sicl.calibrate.sicl.options import Name, Options, Who
from sicl.calibrate.sicl.questions import Content, Crop, Mirror, Question, Repair, Style
from sicl.calibrate.sicl.variants import Draws
from sicl.engine.cut import find_point
from sicl.engine.engine import Engine
from sicl.engine.graphs import Graphs
from sicl.engine.norms import statistics_for
from sicl.engine.split import Split
from sicl.errors import UnsupportedModelError

_QUESTIONS: dict[Name, type[Question]] = {
    "mirror": Mirror,
    "crop": Crop,
    "repair": Repair,
    "style": Style,
    "content": Content,
}


@dataclass(frozen=True)
class Witness:
    """A network that is asked.

    Args:
        name: which.
        network: the live one, or one that shares its tensors.
        questions: about single batches.
        dependent: whether its answers about an image depend on the others of the batch.
        in_company: the same about batches that are normalised as the company was; None if that is the same.
        kept: what the company was normalised with.
    """

    name: Who
    network: nn.Module
    questions: dict[Name, Question]
    dependent: bool = False
    in_company: dict[Name, Question] | None = None
    kept: Kept | None = None

    def meet(self, company: Tensor, asked: Collection[Name]) -> None:
        """Keep what the company is normalised with, as it is and under each question asked."""
        assert self.in_company is not None
        assert self.kept is not None
        engines = dict.fromkeys(question.engine for question in self.in_company.values())
        begun = {engine: engine.begin(company) for engine in engines}
        seen = {CLEAN: next(iter(begun.values())).recorded}
        for name, question in self.in_company.items():
            if self.kept.by_view and name in asked:
                seen |= question.seen(begun[question.engine])
        self.kept.take(seen)


def witnesses_of(options: Options, anchor: Anchor, draws: Draws, graphs: Graphs) -> list[Witness]:
    """Return who is asked: of the options' witnesses those that differ from the network.

    A network that has no layer to cut at is asked nothing (by the printed formula: it is refused).
    """
    live = anchor.live
    if options.relaxation != "printed" and not _can_cut(options, live):
        return [Witness("network", live, {})]
    networks: dict[Who, nn.Module] = {"network": live}
    if "anchor" in options.witnesses and anchor.differs:
        networks["anchor"] = anchor.network

    def ask(name: Who, network: nn.Module) -> Witness:
        made = Witness(name, network, _questions(options, network, draws, graphs))
        dependent = any(question.engine.split.batch_dependent() for question in made.questions.values())
        made = replace(made, dependent=dependent)
        # As printed, every batch stands by itself.
        if not dependent or options.say == "equal":
            return made
        kept = Kept(network, by_view=options.norm == "batch")
        return replace(made, in_company=_questions(options, network, draws, graphs, kept), kept=kept)

    return [ask(name, network) for name, network in networks.items()]


def _can_cut(options: Options, network: nn.Module) -> bool:
    try:
        find_point(network, options.layer)
    except UnsupportedModelError:
        return False
    return True


def _questions(
    options: Options,
    network: nn.Module,
    draws: Draws,
    graphs: Graphs,
    kept: Kept | None = None,
) -> dict[Name, Question]:
    """The questions asked, by name; those at one cut share an engine."""
    engines: dict[object, Engine] = {}
    how, statistics = options.engine_options(), statistics_for(options.norm)
    if kept is not None:
        # Statistics change with every view, which a copy of the network would have to take over each time.
        statistics, how = "frozen", replace(how, engine="plain")

    def engine(layer: str) -> Engine:
        split = Split(network, layer, statistics=statistics)
        return engines.setdefault(split.point, Engine(split, how, graphs))

    found: dict[Name, Question] = {}
    for asked in options.asked:
        cut = engine(options.content_layer if asked == "content" else options.layer)
        # The softmax needs no asking: it is what the network predicts with.
        if asked != "softmax":
            found[asked] = _QUESTIONS[asked](cut, draws, kept)
    return found
