"""A stream with out-of-distribution samples in it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sicl.data.dataset import Dataset
from sicl.errors import OptionError
from sicl.streams.base import OOD_PREFIX, Ordered, Stream
from sicl.streams.kinds import Benign
from sicl.streams.plan import Plan


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
