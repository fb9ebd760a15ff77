"""Send many variants of a batch through the rest of a network, the fastest way that this network allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sicl.engine.fast import FastPasses
from sicl.engine.graphs import Lanes, is_out_of_memory
from sicl.engine.mark import Mark
from sicl.engine.split import Split
from sicl.engine.twin import CannotTwin
from sicl.engine.variants import GivenVariants, Resume, Variants, Votes, count, joined, vote
from sicl.errors import InputError, require_choice, require_positive

Way = Literal["auto", "plain", "twin", "fused", "graph", "compile"]
WAYS = ("auto", "plain", "twin", "fused", "graph", "compile")
PRECISIONS = ("auto", "float32", "bfloat16")
GIB = 1 << 30
_LIVE = 4
"""How many tensors as large as the widest layer's are alive at once, at most."""
_CPU_ROWS = 128
"""Beyond this many rows a CPU gains nothing from larger batches, and loses its cache."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """How variants are computed; none of it changes what is computed, but for rounding.

    Args:
        engine: "plain": the live network, resumed; "twin": a copy in the compute dtype; "fused": the copy as
            a flat list of kernels; "graph": the same as one CUDA graph; "compile": through torch.compile;
            "auto": the fastest that pays for the size at hand.
        precision: of the variants' passes; "auto" is bfloat16 where the device computes faster in it.
        norm: batch norms during variants.
        max_batch: the most rows sent through the network at once; None: as many as `max_memory` allows.
        max_memory: GiB that variants may take.
    """

    engine: Way = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    norm: Literal["frozen", "batch"] = "batch"
    max_batch: int | None = None
    max_memory: float = 2.0

    def __post_init__(self) -> None:
        require_choice(WAYS, engine=self.engine)
        require_choice(PRECISIONS, precision=self.precision)
        require_positive(max_memory=self.max_memory, max_batch=self.max_batch or 1)


class Engine:
    """Votes of variants, batch by batch: `features = begin(images)`, then `collect(variants, labels)`.

    `name` says which way runs, `reason` why not a faster one, `rows_sent` how many variants of samples it
    has computed so far. `temperature`, if set, divides the variants' logits before soft votes are taken. `spare`
    is called when memory runs out: what others can give back.

    Args:
        split: the live network, cut.
        options: how to compute.
    """

    def __init__(self, split: Split, options: EngineOptions) -> None:
        self.split, self.options = split, options
        self.reason = ""
        self.rows_sent = 0
        self._fast: FastPasses | None = None
        self._chosen = False
        self._base: Tensor | None = None
        self._limit: int | None = options.max_batch
        self.temperature: Tensor | None = None
        self.spare: Callable[[], None] = lambda: None

    @property
    def name(self) -> str:
        """The way that variants are computed: "plain", "twin", "fused", "compile" or "graph", and the dtype."""
        if not self._chosen:
            return "not chosen yet"
        return "plain" if self._fast is None else self._fast.name

    @property
    def notes(self) -> list[str]:
        """What was tried and did not work, in words."""
        return [] if self._fast is None else list(self._fast.notes)

    @torch.no_grad()
    def begin(self, images: Tensor) -> Tensor:
        """Run the clean batch up to the cut, take over the network as it stands, return the features."""
        if images.ndim == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        if not self._chosen or (self._fast is not None and not self.fits(images)):
            self._choose(images)
        if self._fast is not None:
            lanes = Lanes(images.device)
            with lanes.of("weights"):
                self._fast.take_over(images.device)
            features = self._fast.features(images)
            lanes.join()
            self._base = self._fast.begin(features)
            return features
        frozen = self.options.norm == "frozen" and self.split.batch_dependent()
        features = self.split.run(images)[0] if frozen else self.split.features(images)
        self._base = features
        return features

    @property
    def resumes(self) -> bool:
        """Whether the network goes on from the cut; if something bypasses it, whole passes are needed."""
        return self.split.plan != "whole"

    def view(self, images: Tensor) -> Variants:
        """Return another view of the last batch (a mirrored one, say) as one variant of it."""
        assert self._base is not None
        return GivenVariants(self._seen(images).unsqueeze(0))

    def collect_view(self, images: Tensor, labels: Tensor) -> Votes:
        """Return the votes of another view of the last batch alone."""
        return count(self.logits(images).unsqueeze(0), labels, self._votes_at(labels))

    @torch.no_grad()
    def logits(self, images: Tensor | None = None) -> Tensor:
        """Return float32 logits of the last batch, or of another view of it, in the variants' precision."""
        assert self._base is not None
        if images is not None and not self.resumes:
            return self.split.pass_of(images, norm=self.options.norm).float()
        features = self._base if images is None else self._seen(images)
        if self._fast is not None:
            return self._fast.logits(features)
        return self.split.resume(features, norm=self.options.norm).float()

    def _seen(self, images: Tensor) -> Tensor:
        """The features of another view."""
        images = images.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else images
        if self._fast is not None:
            return self._fast.cast(self._fast.features(images, view=True))
        return self.split.features_of_view(images)

    def fits(self, images: Tensor) -> bool:
        """Say whether what was prepared for the network fits it as it stands, for images like these."""
        return self._fast is not None and self._fast.fits(images)

    def has_room(self, rows: int, *, share: float) -> bool:
        """Say whether so many rows fit into a share of the memory that variants may take."""
        if self._base is None or self._limit is not None:
            return False
        return rows <= rows_that_fit(self.split, self._base, share * self.options.max_memory)

    def captures(self, device: torch.device) -> bool:
        """Say whether all that a batch needs can go into a graph."""
        return self._fast is not None and self._fast.captures(device)

    def mark(self, sent: int) -> Mark:
        """Return where a batch has been begun, and the rows sent since `sent` were."""
        assert self._base is not None
        assert self._fast is not None
        rows = self.rows_sent - sent
        fast = self._fast
        return Mark(fast, fast.traced, self._base, self.temperature, fast.taken_over(), rows)

    def is_at(self, mark: Mark) -> bool:
        """Say whether what the mark was made with is still what computes."""
        return self._fast is mark.fast and self._fast.traced is mark.traced

    def back_to(self, mark: Mark) -> None:
        """Go on as if a batch had been begun, and rows been sent, as before; a graph did it."""
        self._base, self.temperature = mark.base, mark.temperature
        mark.fast.back_to(mark.taken_over)
        self.rows_sent += mark.rows_sent

    def _choose(self, images: Tensor) -> None:
        self._fast, self.reason, self._chosen = None, "", True
        if self.options.engine == "plain":
            self.reason = "asked for"
            return
        features, logits = self.split.run(images)
        if self.split.plan == "whole":
            self.reason = "something bypasses the cut"
        elif features.dtype != torch.float32:
            self.reason = f"the network computes in {features.dtype}"
        else:
            dtype, frozen = self._dtype(features), self.independent
            try:
                self._fast = FastPasses(self.split, self.options.engine, dtype, images, frozen)
                self._fast.verify(features, logits)
            except CannotTwin as error:
                self._fast, self.reason = None, str(error)

    @property
    def independent(self) -> bool:
        """Whether a sample's votes do not depend on the rest of its batch."""
        return self.options.norm == "frozen" or not self.split.batch_dependent()

    def _dtype(self, features: Tensor) -> torch.dtype:
        if self.options.precision == "auto":
            return torch.bfloat16 if likes_bfloat16(features.device) else torch.float32
        return torch.float32 if self.options.precision == "float32" else torch.bfloat16

    @torch.no_grad()
    def collect(self, variants: Variants, labels: Tensor) -> Votes:
        """Return the votes of all variants on the last batch's labels."""
        if self._base is None:
            raise InputError("`Engine.collect` needs a batch first: call `begin(images)` before it.")
        done: list[Votes] = []
        start = 0
        while start < len(variants):
            n = self._variants_at_once(len(variants), len(labels))
            try:
                done.append(self._part(variants.part(start, min(start + n, len(variants))), labels))
            except RuntimeError as error:
                self._make_do_with_less(error, n * len(labels))
                continue
            start += n
        self.rows_sent += len(variants) * len(labels)
        return joined(done)

    def _part(self, variants: Variants, labels: Tensor, rows: Tensor | None = None) -> Votes:
        """Votes of variants that fit, sample by sample if one variant of the batch does not."""
        assert self._base is not None
        limit = self._rows_at_once()
        if len(labels) <= limit or not self.independent:
            base = self._base if rows is None else self._base[rows]
            temperature = self._votes_at(labels)
            if self._fast is not None:
                return self._fast.vote(variants, base, labels, temperature)
            return vote(variants, base, labels, temperature, self._plain(rows))
        parts = []
        for start in range(0, len(labels), limit):
            part = torch.arange(start, min(start + limit, len(labels)), device=labels.device)
            chosen = part if rows is None else rows[part]
            parts.append(self._part(variants.of_rows(part), labels[part], chosen))
        return joined(parts, dim=1)

    def _votes_at(self, labels: Tensor) -> Tensor:
        """The temperature, 1 if none is set."""
        return labels.new_ones((), dtype=torch.float32) if self.temperature is None else self.temperature

    def _plain(self, rows: Tensor | None) -> Resume:
        return lambda made, n: self.split.resume(made, norm=self.options.norm, groups=n, rows=rows)

    def _rows_at_once(self) -> int:
        assert self._base is not None
        if self._limit is not None:
            return self._limit
        fits = rows_that_fit(self.split, self._base, self.options.max_memory)
        return min(fits, _CPU_ROWS) if self._base.device.type == "cpu" else fits

    def _variants_at_once(self, n_variants: int, rows: int) -> int:
        """As many as fit; a divisor if there is a good one, so that all chunks have one shape."""
        most = min(n_variants, max(1, self._rows_at_once() // rows))
        divisor = next(d for d in range(most, 0, -1) if n_variants % d == 0)
        return divisor if 2 * divisor > most else most

    def _make_do_with_less(self, error: RuntimeError, rows: int) -> None:
        """Halve what is sent at once after running out of memory; raise what is something else."""
        assert self._base is not None
        smallest = 1 if self.independent else len(self._base)
        if not is_out_of_memory(error) or min(rows, self._rows_at_once()) <= smallest:
            raise error
        self._limit = max(smallest, min(rows, self._rows_at_once()) // 2)
        self.spare()
        if self._fast is not None:
            self._fast.forget()
        if self._base.device.type == "cuda":
            torch.cuda.empty_cache()


def rows_that_fit(split: Split, features: Tensor, memory: float) -> int:
    """Return how many rows can be resumed at once in so many GiB (at least one)."""
    widest = max(split.widest, features[0].numel())
    return max(1, int(memory * GIB) // (_LIVE * widest * features.element_size()))


def likes_bfloat16(device: torch.device) -> bool:
    """Say whether a device has bfloat16 arithmetic that is faster than its float32's."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type == "cpu":
        checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        return any(bool(getattr(torch.cpu, check, lambda: False)()) for check in checks)
    return False
