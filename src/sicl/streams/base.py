"""What every stream shares: a frozen spec, a plan, and `open()`."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from sicl.corruptions import CORRUPTIONS, VALIDATION_CORRUPTIONS
from sicl.data.dataset import CLEAN, Dataset
from sicl.data.images import Positions
from sicl.errors import InputError, OptionError, require_between, require_choice, require_positive
from sicl.spec import Spec
from sicl.streams.order import dirichlet_order
from sicl.streams.plan import OOD_PREFIX, Plan

if TYPE_CHECKING:
    import torch

    from sicl.streams.cache import ImageCache
    from sicl.streams.player import OpenStream

DOMAINS = (CLEAN, *CORRUPTIONS, *VALIDATION_CORRUPTIONS)
"""The names a stream's corruption may have."""


@dataclass(frozen=True, kw_only=True)
class Stream(Spec, ABC):
    """An order over a data set's corrupted images; `open()` makes it a sequence of batches."""

    @property
    @abstractmethod
    def settings(self) -> Ordered:
        """The spec that holds batch size, severity and seeds."""

    @abstractmethod
    def plan(self, dataset: Dataset) -> Plan:
        """Return which sample of which domain comes when; depends on the spec and the labels alone."""

    @property
    def ood_name(self) -> str | None:
        """The name of the set that out-of-distribution samples come from, if there are any."""
        return None

    def open(
        self,
        dataset: Dataset,
        *,
        device: torch.device | str = "cpu",
        cache: ImageCache | str | os.PathLike[str] | None = None,
        ood: Dataset | None = None,
        root: str | os.PathLike[str] | None = None,
        prefetch: bool = True,
    ) -> OpenStream:
        """Return the batches: `len()` says how many, and every iteration plays the same ones from the start.

        Args:
            dataset: what to stream.
            device: where the batches go; pixels travel as bytes and become float32 there.
            cache: keeps made corruptions for the next run over the same images: an `ImageCache`, or a folder.
            ood: the out-of-distribution set, where it is not to be loaded by its name.
            root: where to look for that set (None: SICL_DATA or ~/.cache/sicl).
            prefetch: read ahead in a second thread.
        """
        from sicl.streams.player import open_stream

        return open_stream(self, dataset, device=device, cache=cache, ood=ood, root=root, prefetch=prefetch)


@dataclass(frozen=True, kw_only=True)
class Ordered(Stream):
    """The options of a stream over corruptions.

    Args:
        severity: 1 to 5.
        batch_size: samples a batch; the last batch has what is left.
        seed: decides which samples come and when, and nothing else.
        order: "iid", or "label": classes arrive in runs, by a Dirichlet draw over the classes of each domain.
        label_gamma: the concentration of that draw; small means long runs.
        corruption_seed: decides the noise in corruptions that are made (published ones are fixed).
    """

    severity: int = 5
    batch_size: int = 64
    seed: int = 0
    order: Literal["iid", "label"] = "iid"
    label_gamma: float = 0.1
    corruption_seed: int = 0

    def __post_init__(self) -> None:
        require_between(1, 5, severity=self.severity)
        require_positive(batch_size=self.batch_size, label_gamma=self.label_gamma)
        require_between(0, 2**63 - 1, seed=self.seed, corruption_seed=self.corruption_seed)

    @property
    def settings(self) -> Ordered:
        """This spec itself."""
        return self

    def draw(self, dataset: Dataset, n: int | None, domain: str) -> Positions:
        """Draw `n` positions without replacement (None: all) and order them, from the seed and the domain's name."""
        if n is not None and n > len(dataset):
            raise InputError(
                f"the stream asks for {n} images of each corruption, but {dataset.name} has {len(dataset)}; "
                "ask for fewer or leave it out to take all."
            )
        generator = self.generator(domain)
        drawn = generator.permutation(len(dataset)).astype(np.int64)[:n]
        if self.order == "iid":
            return drawn
        labels = dataset.labels[drawn]
        slots = max(2, len(np.unique(labels)))
        return drawn[dirichlet_order(labels, gamma=self.label_gamma, slots=slots, generator=generator)]

    def generator(self, purpose: str) -> np.random.Generator:
        """Return a generator of this seed for one purpose, independent of those for others."""
        return np.random.default_rng([self.seed, *purpose.encode()])


def require_corruptions(names: Sequence[str], argument: str) -> None:
    """Raise `OptionError` unless `names` are one or more different known corruptions."""
    if not names:
        raise OptionError(f"`{argument}` must be a tuple of at least one corruption name, got none.")
    for name in names:
        require_choice(DOMAINS, **{argument: name})
    if len(set(names)) < len(names):
        raise OptionError(f"`{argument}` must name each corruption once, got {', '.join(names)}.")


__all__ = ["DOMAINS", "OOD_PREFIX", "Ordered", "Stream", "require_corruptions"]
