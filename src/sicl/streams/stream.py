"""What every stream shares: a frozen spec, the order of its samples, and batches once it is open."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from sicl.corruptions import CORRUPTIONS, VALIDATION_CORRUPTIONS
from sicl.data.dataset import CLEAN, Dataset
from sicl.data.images import Images, Noise, Positions, Resized, Uint8Images
from sicl.data.load import load_dataset
from sicl.errors import InputError, OptionError, require_between, require_choice, require_positive
from sicl.spec import Spec
from sicl.streams.cache import ImageCache, as_cache, domain_key
from sicl.streams.plan import OOD_PREFIX, Plan, dirichlet_order
from sicl.types import OOD_LABEL, Batch

DOMAINS = (CLEAN, *CORRUPTIONS, *VALIDATION_CORRUPTIONS)
"""The names a stream's corruption may have."""

CHUNK_BYTES = 16 * 2**20
CHUNK_BATCHES = 16


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
        if len(dataset) == 0:
            raise InputError(f"`dataset` has no images ({dataset.name}); a stream needs at least one.")
        other: Images | None = None
        if self.ood_name is not None:
            found = ood if ood is not None else load_dataset(self.ood_name, root)
            other = fit(found.images, dataset.size)
        plan, keeper = self.plan(dataset), as_cache(cache)
        # A stream that does not fit would push out its own domains and make them again and again.
        if keeper is not None and len(plan) * int(np.prod(dataset.images.shape[1:])) > keeper.max_bytes:
            keeper = None
        return OpenStream(plan, dataset, self.settings, torch.device(device), other, keeper, prefetch)


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
        return drawn if self.order == "iid" else drawn[self._by_label(dataset.labels[drawn], generator)]

    def _by_label(self, labels: NDArray[np.int64], generator: np.random.Generator) -> Positions:
        """Return an order in which classes arrive in runs."""
        slots = max(2, len(np.unique(labels)))
        return dirichlet_order(labels, gamma=self.label_gamma, slots=slots, generator=generator)

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


@dataclass
class OpenStream:
    """A stream bound to data and device; iterate it as often as you like, each time from the start."""

    plan: Plan
    dataset: Dataset
    settings: Ordered
    device: torch.device
    ood: Images | None = None
    cache: ImageCache | None = None
    prefetch: bool = True
    _labels: torch.Tensor = field(init=False, repr=False)
    _keys: dict[int, tuple[str, Positions]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        labels = np.full(len(self.plan), OOD_LABEL, np.int64)
        known = ~self.plan.is_ood()
        labels[known] = self.dataset.labels[self.plan.positions[known]]
        self._labels = torch.from_numpy(labels)

    def __len__(self) -> int:
        """The number of batches."""
        return -(-len(self.plan) // self.settings.batch_size)

    @property
    def n_samples(self) -> int:
        """The number of samples."""
        return len(self.plan)

    @property
    def checksums(self) -> dict[str, str]:
        """The checksums of the made images by domain, of those that came through the cache so far."""
        if self.cache is None:
            return {}
        found = {self.plan.domains[i]: self.cache.checksum(key) for i, (key, _) in self._keys.items()}
        return {domain: checksum for domain, checksum in sorted(found.items()) if checksum is not None}

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches in order."""
        labels = self._labels.to(self.device)
        for start, pixels in self._chunks():
            # Bytes travel a chunk at a time: one copy for several batches, a quarter of the floats' size.
            chunk = torch.from_numpy(pixels).to(self.device)
            for offset in range(0, len(chunk), self.settings.batch_size):
                part = chunk[offset : offset + self.settings.batch_size]
                images = part.permute(0, 3, 1, 2).contiguous().float().div_(255)
                piece = slice(start + offset, start + offset + len(part))
                domains = tuple(self.plan.domains[i] for i in self.plan.domain_ids[piece].tolist())
                yield Batch(images, labels[piece].clone(), domains)

    def _chunks(self) -> Iterator[tuple[int, Uint8Images]]:
        per_batch = self.settings.batch_size * int(np.prod(self.dataset.images.shape[1:]))
        step = self.settings.batch_size * max(1, min(CHUNK_BATCHES, CHUNK_BYTES // per_batch))
        starts = range(0, len(self.plan), step)
        if not self.prefetch:
            yield from ((start, self._read(start, start + step)) for start in starts)
            return
        # One chunk ahead: memory holds two, and an abandoned stream waits for one at most.
        with ThreadPoolExecutor(1, "sicl-stream") as reader:
            pending = reader.submit(self._read, 0, step)
            for start in starts:
                pixels = pending.result()
                pending = reader.submit(self._read, start + step, start + 2 * step)
                yield start, pixels

    def _read(self, start: int, end: int) -> Uint8Images:
        """Read the samples of [start, end), one vectorised call for each domain among them."""
        positions, ids = self.plan.positions[start:end], self.plan.domain_ids[start:end]
        pixels = np.empty((len(positions), *self.dataset.images.shape[1:]), np.uint8)
        for domain in np.unique(ids):
            here = ids == domain
            pixels[here] = self._read_domain(int(domain), positions[here])
        return pixels

    def _read_domain(self, domain: int, positions: Positions) -> Uint8Images:
        name = self.plan.domains[domain]
        if name.startswith(OOD_PREFIX):
            assert self.ood is not None
            return self.ood[positions % self.ood.shape[0]]
        if name != CLEAN and self.dataset.corrupted is None and self.cache is not None:
            return self._read_cached(self.cache, domain, positions)
        return self._make(name, positions)

    def _read_cached(self, cache: ImageCache, domain: int, positions: Positions) -> Uint8Images:
        name = self.plan.domains[domain]
        if domain not in self._keys:
            wanted = np.unique(self.plan.positions[self.plan.domain_ids == domain])
            severity, seed = self.settings.severity, self.settings.corruption_seed
            self._keys[domain] = domain_key(self.dataset, name, severity, seed, wanted), wanted
        key, wanted = self._keys[domain]
        shape = (len(wanted), *self.dataset.images.shape[1:])
        step = max(1, CHUNK_BYTES // int(np.prod(shape[1:])))
        starts = range(0, len(wanted), step)
        kept = cache.get(key, shape, lambda: (self._make(name, wanted[at : at + step]) for at in starts))
        return kept[np.searchsorted(wanted, positions)]

    def _make(self, name: str, positions: Positions) -> Uint8Images:
        severity, seed = self.settings.severity, self.settings.corruption_seed
        return self.dataset.read(positions, name, severity=severity, seed=seed, device=self.device)


def fit(images: Images, size: int) -> Images:
    """Return images at `size` pixels a side: noise is drawn at that size, others are resized when read."""
    return replace(images, size=size) if isinstance(images, Noise) else Resized(images, size)
