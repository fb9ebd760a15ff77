"""Where an engine stands, so that a graph can take its place and rounds after it go on from there."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sicl.engine.fast import FastPasses


@dataclass(frozen=True)
class Mark:
    """Where an engine has begun a batch, for a graph that begins others in its place.

    Args:
        fast: what the graph was captured from; held, because the graph writes into its memory.
        traced: its `traced` of then.
        base: the features.
        temperature: of the votes.
        taken_over: what was taken over of the network.
        rows_sent: how many.
    """

    fast: FastPasses
    traced: object
    base: Tensor
    temperature: Tensor | None
    taken_over: frozenset[str]
    rows_sent: int
