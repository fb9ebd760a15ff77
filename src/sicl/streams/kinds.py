"""The streams over corruptions: benign, continual, mixed, dynamic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sicl.corruptions import CORRUPTIONS
from sicl.data.dataset import Dataset
from sicl.errors import require_choice, require_positive
from sicl.streams.base import DOMAINS, Ordered, require_corruptions
from sicl.streams.order import dirichlet_order
from sicl.streams.plan import Plan, join


@dataclass(frozen=True, kw_only=True)
class Benign(Ordered):
    """One corruption from beginning to end.

    Args:
        corruption: its name, or "clean".
        n: how many images; None takes the whole data set.
    """

    corruption: str = "gaussian_noise"
    n: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(DOMAINS, corruption=self.corruption)
        require_positive(n=1 if self.n is None else self.n)

    def plan(self, dataset: Dataset) -> Plan:
        """Play the one domain."""
        return join([(self.corruption, self.draw(dataset, self.n, self.corruption))])


@dataclass(frozen=True, kw_only=True)
class Continual(Ordered):
    """The corruptions one after the other, in the order they are named; the model is never told when one ends.

    Args:
        corruptions: their names; by default the fifteen, in their usual order.
        per_corruption: images of each; None takes the whole data set each time.
    """

    corruptions: tuple[str, ...] = tuple(CORRUPTIONS)
    per_corruption: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_corruptions(self.corruptions, "corruptions")
        require_positive(per_corruption=1 if self.per_corruption is None else self.per_corruption)

    def plan(self, dataset: Dataset) -> Plan:
        """Play the domains in turn."""
        return join([(name, self.draw(dataset, self.per_corruption, name)) for name in self.corruptions])


@dataclass(frozen=True, kw_only=True)
class Mixed(Continual):
    """All corruptions at once: every sample's corruption is independent of its neighbours'.

    With `order="label"` the classes arrive in runs while the corruptions stay mixed.
    """

    def plan(self, dataset: Dataset) -> Plan:
        """Shuffle the domains together."""
        plan = super().plan(dataset)
        generator = self.generator("mixed")
        shuffled = plan.reordered(generator.permutation(len(plan)).astype(np.int64))
        if self.order == "iid":
            return shuffled
        labels = dataset.labels[shuffled.positions]
        slots = max(2, len(np.unique(labels)))
        return shuffled.reordered(
            dirichlet_order(labels, gamma=self.label_gamma, slots=slots, generator=generator)
        )


@dataclass(frozen=True, kw_only=True)
class Dynamic(Continual):
    """Corruption types arrive in runs of varying length, correlated in time.

    For every corruption a Dirichlet(gamma) vector over `slots` slots says what share of its samples falls into
    each slot; slots play in order, each slot's segments in random order.

    Args:
        gamma: the concentration; small means few long runs, large many short ones.
        slots: how many slots.
    """

    gamma: float = 0.1
    slots: int = 15

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(gamma=self.gamma, slots=self.slots)

    def plan(self, dataset: Dataset) -> Plan:
        """Deal the domains' samples to the slots."""
        plan = super().plan(dataset)
        generator = self.generator("dynamic")
        return plan.reordered(
            dirichlet_order(plan.domain_ids, gamma=self.gamma, slots=self.slots, generator=generator)
        )
