"""Cast the votes of several kinds of variants together: those of one engine go through the network at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from sicl.calibrate.sicl.questions import Engines
from sicl.calibrate.sicl.variants import Draw
from sicl.engine.engine import Engine
from sicl.engine.graphs import Lanes
from sicl.engine.variants import JoinedVariants, Votes, joined

Cast = Callable[[Mapping[str, int]], dict[str, Votes]]
"""Draws the next variants, so many of each kind, and returns their votes; kinds without any are left out."""


@dataclass(frozen=True)
class Kind:
    """A kind of variants.

    Args:
        engine: computes their votes.
        draw: draws them.
    """

    engine: Engine
    draw: Draw


class Casting:
    """Casts votes on the labels of a batch that the engines have begun.

    Args:
        engines: that compute.
        kinds: by name; drawn in this order, engine by engine.
        labels: N.
        lanes: of the graph that is captured, if one is.
    """

    def __init__(self, engines: Engines, kinds: Mapping[str, Kind], labels: Tensor, lanes: Lanes) -> None:
        self._engines, self._kinds, self._labels, self._lanes = engines, kinds, labels, lanes

    def __call__(self, counts: Mapping[str, int]) -> dict[str, Votes]:
        """Return the votes of so many new variants of each kind, by name."""
        asked = {name: kind for name, kind in self._kinds.items() if counts.get(name, 0) > 0}
        votes: dict[str, Votes] = {}
        for engine in dict.fromkeys(kind.engine for kind in asked.values()):
            names = [name for name, kind in asked.items() if kind.engine is engine]
            with self._lanes.of(self._engines.lane(engine)):
                drawn = [asked[name].draw(counts[name]) for name in names]
                together = drawn[0] if len(drawn) == 1 else JoinedVariants(tuple(drawn))
                parts = engine.collect(together, self._labels).split([len(variants) for variants in drawn])
            votes.update(zip(names, parts))
        return {name: votes[name] for name in asked}


def shared(one: Cast, other: Cast, share: float) -> Cast:
    """Return what casts a share of each kind's votes by `other`, and the rest by `one`."""

    def cast(counts: Mapping[str, int]) -> dict[str, Votes]:
        others = {name: round(share * n) for name, n in counts.items()}
        parts = one({name: n - others[name] for name, n in counts.items()}), other(others)
        return {name: joined([part[name] for part in parts if name in part]) for name in counts}

    return cast
