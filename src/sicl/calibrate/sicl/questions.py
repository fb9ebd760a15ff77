"""What is asked of a prediction: does it survive another style, noise in the content, a mirror?"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor, nn

from sicl import perturb
from sicl.calibrate.sicl.anchor import Anchor
from sicl.calibrate.sicl.options import Name, SiclOptions
from sicl.calibrate.sicl.variants import VariantDraws
from sicl.engine.engine import Engine
from sicl.engine.graphs import Graphs
from sicl.engine.norms import Statistics, batch_norms, statistics_of
from sicl.engine.split import Begun, Split
from sicl.engine.variants import Variants

Strength = Tensor | float


class Question(ABC):
    """One question about predictions.

    Args:
        engine: computes the votes: of which network, at which cut (`engine.split.point`) and by whose statistics
            (`engine.split.statistics`).
        draws: variants.
    """

    name: ClassVar[Name]
    drawn: ClassVar[bool] = True
    """Whether its variants are drawn: as many as are asked for, and others every time."""

    def __init__(self, engine: Engine, draws: VariantDraws) -> None:
        self.engine, self.draws = engine, draws

    @abstractmethod
    def look(self, begun: Begun) -> Tensor:
        """Return what must be known of a clean batch to draw variants of it."""

    @abstractmethod
    def draw(self, begun: Begun, known: Tensor, n: int, strength: Strength) -> Variants:
        """Return the next `n` variants.

        Args:
            begun: the clean batch.
            known: what `look` returned for it.
            n: how many.
            strength: how hard to perturb; 1 is the spec's.
        """


class Style(Question):
    """Channel statistics shaken; `look` gives them (N x 2 x C)."""

    name = "style"

    def look(self, begun: Begun) -> Tensor:
        return torch.stack(perturb.style_statistics(begun.features), dim=1)

    def draw(self, begun: Begun, known: Tensor, n: int, strength: Strength) -> Variants:
        return self.draws.style(known, n, strength)


class Content(Question):
    """Noise on every value; `look` gives the channels' standard deviations (N x C)."""

    name = "content"

    def look(self, begun: Begun) -> Tensor:
        return perturb.style_statistics(begun.features)[1]

    def draw(self, begun: Begun, known: Tensor, n: int, strength: Strength) -> Variants:
        return self.draws.content(begun.base, known, n, strength)


class Mirror(Question):
    """The mirrored images: one variant, the same every time."""

    name = "mirror"
    drawn = False

    def look(self, begun: Begun) -> Tensor:
        return begun.base.new_empty(0)

    def draw(self, begun: Begun, known: Tensor, n: int, strength: Strength) -> Variants:
        return self.engine.view(begun.images.flip(-1))


def questions_of(
    options: SiclOptions,
    anchor: Anchor,
    draws: VariantDraws,
    graphs: Graphs,
    statistics: Statistics | None = None,
) -> dict[Name, Question]:
    """Return all questions, by name; those about one network and cut share an engine.

    Args:
        options: where to ask, and how to compute.
        anchor: the networks.
        draws: variants.
        graphs: of the engines.
        statistics: what batch norms normalise with, see `Split`.
    """

    def engine(network: nn.Module, layer: str) -> Engine:
        return Engine(Split(network, layer, statistics=statistics), options.engine_options(), graphs)

    style = content = mirror = engine(anchor.live, options.layer)
    if options.needs_content:
        kinds = {statistics_of(norm) for norm in batch_norms(anchor.live)}
        # Running statistics belong to the parameters that have adapted with them: they fit no other network.
        if options.content_by == "attached" and (statistics == "batch" or "running" not in kinds):
            content = engine(anchor.network, options.content_layer)
        elif (shallow := engine(anchor.live, options.content_layer)).split.point != style.split.point:
            content = mirror = shallow
    return {"style": Style(style, draws), "content": Content(content, draws), "mirror": Mirror(mirror, draws)}
