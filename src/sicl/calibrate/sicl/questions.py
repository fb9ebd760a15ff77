"""Who is asked about a prediction, and the engines that compute the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sicl.calibrate.sicl.anchor import Attached
from sicl.engine.engine import Engine
from sicl.engine.norms import batch_norms, uses_batch_statistics
from sicl.engine.split import Split

if TYPE_CHECKING:
    from sicl.calibrate.sicl.spec import SICL

Member = Literal["style", "content", "mirror"]
MEMBERS: tuple[Member, ...] = ("style", "content", "mirror")


@dataclass(frozen=True)
class Engines:
    """What computes the members' votes: one engine for each network and cut that is looked at."""

    style: Engine
    content: Engine
    mirror: Engine

    @classmethod
    def of(cls, spec: SICL, attached: Attached, *, fresh: bool) -> Engines:
        """Cut the networks; `fresh`: all their batch norms use the statistics of the batch at hand."""
        network, options = attached.live, spec.engine_options()
        style = Engine(Split(network, spec.layer, fresh=fresh), options)
        # Running statistics belong to the parameters that have adapted with them: no other network can use them.
        of_the_batch = fresh or all(map(uses_batch_statistics, batch_norms(network)))
        if spec.needs_content and spec.content_by == "attached" and of_the_batch:
            return cls(
                style, Engine(Split(attached.network, spec.content_layer, fresh=fresh), options), style
            )
        content = Split(network, spec.content_layer, fresh=fresh)
        if content.point == style.split.point:
            return cls(style, style, style)
        shallow = Engine(content, options)
        return cls(style, shallow, shallow if spec.needs_content else style)

    def distinct(self, members: tuple[Member, ...] = MEMBERS) -> tuple[Engine, ...]:
        """Return the engines of these members, each once."""
        return tuple(dict.fromkeys(getattr(self, member) for member in members))

    def lane(self, engine: Engine) -> Engine | None:
        """What may run beside the rest in a graph: the engines that do not compute style."""
        return None if engine is self.style else engine
