"""The streams by name: benign, continual, mixed, dynamic, and any of them with out-of-distribution samples."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from sicl.corruptions import CORRUPTIONS
from sicl.data.dataset import Dataset
from sicl.errors import OptionError, nearest, require_choice, require_positive
from sicl.streams.plan import OOD_PREFIX, Plan, dirichlet_order, join
from sicl.streams.stream import DOMAINS, Ordered, Stream, require_corruptions


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
        return shuffled.reordered(self._by_label(dataset.labels[shuffled.positions], generator))


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


@dataclass(frozen=True, kw_only=True)
class Noisy(Stream):
    """Another stream with out-of-distribution samples at random places; they carry the label `OOD_LABEL`.

    The in-distribution samples keep the order the base stream gives them.

    Args:
        base: the stream of samples that do have a class.
        ood: the other set's name: "noise", "mnist", "svhn", "folder:PATH" or any data set.
        share: how much of the whole stream is out of distribution, in [0, 1).
    """

    base: Stream = field(default_factory=Benign)
    ood: str = "noise"
    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise OptionError(f"`share` must lie in [0, 1), got {self.share!r}.")
        if isinstance(self.base, Noisy):
            raise OptionError(
                "`base` must be a stream without out-of-distribution samples, got another `Noisy`."
            )

    @property
    def settings(self) -> Ordered:
        """The base stream's."""
        return self.base.settings

    @property
    def ood_name(self) -> str | None:
        """The other set's name."""
        return self.ood

    def plan(self, dataset: Dataset) -> Plan:
        """Scatter the OOD samples over the base plan; their positions count up and wrap around the OOD set."""
        base = self.base.plan(dataset)
        n_ood = round(len(base) * self.share / (1 - self.share))
        total = len(base) + n_ood
        generator = self.settings.generator(f"noisy {self.ood}")
        here = np.zeros(total, bool)
        here[generator.permutation(total)[:n_ood]] = True
        positions = np.empty(total, np.int64)
        ids = np.empty(total, np.int16)
        positions[~here], ids[~here] = base.positions, base.domain_ids
        positions[here], ids[here] = np.arange(n_ood), len(base.domains)
        return Plan(positions, ids, (*base.domains, OOD_PREFIX + self.ood))


STREAMS: dict[str, type[Stream]] = {
    "benign": Benign,
    "dynamic": Dynamic,
    "continual": Continual,
    "mixed": Mixed,
    "noisy": Noisy,
}
"""The kinds of streams by name."""


def make_stream(name: str, /, **options: Any) -> Stream:
    """Return the spec of a stream; for "noisy", `base` names the kind (default "benign") the other options go to.

    >>> make_stream("noisy", corruption="fog", ood="noise", share=0.2).base.corruption
    'fog'
    """
    require_choice(STREAMS, stream=name)
    if name != "noisy" or isinstance(options.get("base"), Stream):
        return STREAMS[name](**_known(name, options))
    own = {key: options.pop(key) for key in ("ood", "share") if key in options}
    return Noisy(base=make_stream(options.pop("base", "benign"), **options), **own)


def _known(name: str, options: dict[str, Any]) -> dict[str, Any]:
    known = [option.name for option in fields(STREAMS[name])]
    for option in options:
        if option not in known:
            raise OptionError(
                f"the stream {name!r} has no option {option!r}; it has {', '.join(known)}.{nearest(option, known)}"
            )
    return options
