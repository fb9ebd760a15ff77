"""Who is asked about a prediction: the network as it predicts, as it was attached, and by the batch's statistics."""

from __future__ import annotations

import copy
from collections.abc import Collection
from dataclasses import dataclass, replace

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sicl.calibrate.sicl.anchor import Anchor
from sicl.calibrate.sicl.kept import CLEAN, Kept
from sicl.calibrate.sicl.options import Name, Options, Who
from sicl.calibrate.sicl.questions import Content, Crop, Mirror, Question, Repair, Style
from sicl.calibrate.sicl.variants import Draws
from sicl.engine.cut import find_point
from sicl.engine.engine import Engine
from sicl.engine.graphs import Graphs
from sicl.engine.norms import (
    Statistics,
    batch_norms,
    can_group,
    is_torchs,
    only_normalises,
    statistics_for,
    statistics_of,
)
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
        in_company: the same about batches that are normalised as the company was; None if that is the same.
        kept: what the company was normalised with.
    """

    name: Who
    network: nn.Module
    questions: dict[Name, Question]
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
    norms = batch_norms(live)
    running = any(statistics_of(norm) == "running" for norm in norms)
    networks: dict[Who, nn.Module] = {"network": live}
    # Running statistics belong to the parameters that have adapted with them: they fit no other network.
    if "anchor" in options.witnesses and anchor.adapts and not running:
        networks["anchor"] = anchor.network
    if "batch" in options.witnesses and running and options.norm != "frozen" and all(map(can_group, norms)):
        networks["batch"] = live

    def ask(name: Who, network: nn.Module) -> Witness:
        statistics: Statistics | None = "batch" if name == "batch" else None
        made = Witness(name, network, _questions(options, network, draws, graphs, statistics))
        dependent = any(question.engine.split.batch_dependent() for question in made.questions.values())
        # As printed, every batch stands by itself.
        if not dependent or options.say == "equal":
            return made
        together = by_the_batch(network) if name == "batch" else network
        kept = Kept(together, by_view=options.norm == "batch")
        return replace(made, in_company=_questions(options, together, draws, graphs, kept=kept), kept=kept)

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
    statistics: Statistics | None = None,
    kept: Kept | None = None,
) -> dict[Name, Question]:
    """The questions asked, by name; those at one cut share an engine."""
    engines: dict[object, Engine] = {}
    how = options.engine_options()
    if kept is not None:
        # Statistics change with every view, which a copy of the network would have to take over each time.
        statistics, how = "frozen", replace(how, engine="plain")

    def engine(layer: str) -> Engine:
        split = Split(network, layer, statistics=statistics or statistics_for(options.norm))
        return engines.setdefault(split.point, Engine(split, how, graphs))

    found: dict[Name, Question] = {}
    for asked in options.asked:
        cut = engine(options.content_layer if asked == "content" else options.layer)
        # The softmax needs no asking: it is what the network predicts with.
        if asked != "softmax":
            found[asked] = _QUESTIONS[asked](cut, draws, kept)
    return found


def by_the_batch(live: nn.Module) -> nn.Module:
    """Return a network with all of `live`'s tensors whose batch norms use the statistics of the batch at hand."""
    tensors = {id(tensor): tensor for tensor in (*live.parameters(), *live.buffers())}
    network = copy.deepcopy(live, tensors)
    for norm in batch_norms(network):
        # A robust norm in training mode, as engines use to see statistics, keeps averages of its own.
        if not is_torchs(norm) and only_normalises(norm):
            norm.__class__ = _Plain
        # In evaluation mode, without running statistics: what torch, and subclasses, then use are the batch's.
        norm.track_running_stats = False
        norm.running_mean = norm.running_var = norm.num_batches_tracked = None
    return network


class _Plain(_BatchNorm):
    """Torch's batch norm, for input of any number of dimensions."""

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept what the layer accepted."""
