"""Send many variants of a batch through the rest of a network, the fastest way that this network allows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sicl.engine.graphs import Graphs, effect, is_capturing, is_out_of_memory
from sicl.engine.norms import Recorded
from sicl.engine.passes import Level, Passes
from sicl.engine.split import Begun, Split
from sicl.engine.twin import CannotTwin, shell_of
from sicl.engine.variants import (
    GivenVariants,
    JoinedVariants,
    Variants,
    ViewVariants,
    Votes,
    count,
    has_views,
    joined,
)
from sicl.errors import require_positive
from sicl.spec import Spec

GIB = 1 << 30
_LIVE = 4
"""How many tensors as large as the widest layer's are alive at once, at most."""
_LIVE_BEFORE = 6
"""The same before the cut, where the network's own code runs and holds what it has named."""
_CPU_ROWS = 128
"""Beyond this many rows a CPU gains nothing from larger batches, and loses its cache."""

_COMPARED = 16
"""How many images a twin is compared on."""


@dataclass(frozen=True, kw_only=True)
class EngineOptions(Spec):
    """How variants are computed; none of it changes what is computed, but for rounding.

    Args:
        engine: the highest level to use: "plain": the live network, resumed; "twin": a copy in the compute
            dtype; "traced": the copy as a flat list of kernels ("fused" is its older name); "graph": the same as
            one CUDA graph; "auto": the highest that pays for the size at hand.
        precision: of the variants' passes; "auto" is bfloat16 where the device computes faster in it.
        max_batch: the most rows sent through the network at once; None: as many as `max_memory` allows.
        max_memory: GiB that variants may take, with the features and views that they are made of.
    """

    engine: Literal["auto", "plain", "twin", "traced", "fused", "graph"] = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    max_batch: int | None = None
    max_memory: float = 2.0

    def __post_init__(self) -> None:
        require_positive(
            max_memory=self.max_memory, max_batch=1 if self.max_batch is None else self.max_batch
        )

    @property
    def level(self) -> Level:
        """The highest level to use."""
        return "traced" if self.engine == "fused" else self.engine


class Engine:
    """Votes of variants: `begun = engine.begin(images)`, then `engine.votes(begun, variants, labels)`.

    A begun batch is a value: several may be in use, and each is good for as long as the network stays as it is.
    What the engine keeps are caches. `name` says which level ran last, `reason` and `notes` why not a higher one,
    `rows_sent` how many variants of samples it has computed so far.

    Args:
        split: the live network, cut.
        options: how to compute.
        graphs: where what is captured belongs to.
    """

    def __init__(self, split: Split, options: EngineOptions, graphs: Graphs | None = None) -> None:
        self.split, self.options = split, options
        self.graphs = Graphs() if graphs is None else graphs
        self.reason = ""
        self.rows_sent = 0
        self._passes: Passes | None = None
        self._chosen = 0
        self._limit: int | None = options.max_batch
        self._row_bytes = 0
        self._shell: nn.Module | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The twin and all that was made from it are caches: no part of a copy.
        caches = {"_passes": None, "_shell": None, "_chosen": 0}
        return {**self.__dict__, **caches, "_limit": self.options.max_batch}

    @property
    def name(self) -> str:
        """The level that variants are computed at, and the dtype."""
        if not self._chosen:
            return "not chosen yet"
        if self._passes is None:
            return "plain"
        return f"{self._passes.ran} {str(self._passes.dtype).removeprefix('torch.')}"

    @property
    def notes(self) -> list[str]:
        """What was tried and did not work, in words."""
        return [*(self._passes.notes if self._passes is not None else ()), *self.graphs.notes]

    def prepare(self) -> None:
        """Copy the network now, as far as that can be done before there are images: a first batch waits less."""
        if self.options.level != "plain":
            # What cannot be copied is said when the twin is made.
            with suppress(Exception):
                self._shell = shell_of(self.split.network)

    @torch.no_grad()
    def begin(self, images: Tensor, like: Recorded | None = None) -> Begun:
        """Run a clean batch up to the cut, the network as it stands; normalised `like` another, at level "plain"."""
        images = _channels_last(images)
        # A method may switch its norms to other statistics, and the twin was made for the old ones.
        if not self._chosen or (self._passes is not None and not self._passes.fits(images)):
            self._choose(images)
        begun = self.split.begin(images, like) if self._passes is None else self._passes.begin(images)
        # The widest place decides how many rows fit: a layer after the cut, or the cut itself.
        self._row_bytes = max(self.split.widest, begun.base[0].numel()) * begun.base.element_size()
        return begun

    def view(self, *views: Tensor) -> ViewVariants:
        """Return other views of a batch (the mirrored one, say) as variants of it."""
        return ViewVariants(views, self._view)

    @torch.no_grad()
    def votes(
        self, begun: Begun, variants: Variants, labels: Tensor, temperature: Tensor | float = 1.0
    ) -> Votes:
        """Return the votes of all variants on the labels.

        Args:
            begun: the clean batch.
            variants: of it.
            labels: of its first rows, or of all; the other rows only share its statistics.
            temperature: divides the variants' logits before soft votes are taken.
        """
        if not isinstance(temperature, Tensor):
            temperature = labels.new_full((), temperature, dtype=torch.float32)
        # Rows beside the batch are sent too: variants share their statistics with them.
        rows = len(begun)
        held = sum(tensor.nbytes for tensor in {begun.features, begun.base, *variants.tensors()})
        done: list[Votes] = []
        start = 0
        while start < len(variants):
            n = self._variants_at_once(len(variants), rows, held)
            try:
                # Made part by part: all variants at once may not fit where their description does.
                part = variants.part(start, min(start + n, len(variants)))
                done.append(self._part(begun, part, labels, temperature))
            except RuntimeError as error:
                self._make_do_with_less(error, n * rows, rows)
                continue
            start += n
        # Counted by an effect: a replayed graph runs no Python, and would not be counted.
        effect(lambda: self._count(len(variants) * rows))
        return joined(done)

    @torch.no_grad()
    def logits(self, begun: Begun, variants: Variants | None = None) -> Tensor:
        """Return float32 logits of the clean batch (N x C), or of variants of it (V x N x C)."""
        # The clean batch is its own only variant, so that it is computed as variants are.
        clean = GivenVariants(begun.base.unsqueeze(0))
        asked = clean if variants is None else self._without_views(begun, variants)
        if self._passes is None or begun.moments is None:
            logits = self._plain(begun, asked)
        else:
            logits = self._passes.logits(begun.base, begun.moments, asked)
        return logits[0] if variants is None else logits

    @property
    def independent(self) -> bool:
        """Whether a sample's votes do not depend on the rest of its batch."""
        return self.split.statistics == "frozen" or not self.split.batch_dependent()

    def captured_as(self, images: Tensor) -> tuple[int, int] | None:
        """Return what a larger graph with this engine in it depends on; None if there can be none."""
        if self._passes is None or not self._passes.captures or not self._passes.fits(images):
            return None
        return self._chosen, self._passes.generation

    def has_room(self, rows: int, *, share: float) -> bool:
        """Say whether so many rows fit into a share of the memory that variants may take."""
        # A limit that was asked for, or found by running out of memory, is no size to plan with.
        if not self._row_bytes or self._limit is not None:
            return False
        return rows * _LIVE * self._row_bytes <= share * self.options.max_memory * GIB

    @torch.no_grad()
    def _view(self, views: tuple[Tensor, ...], out: Tensor) -> None:
        """Write the features of views to `out`, by as few passes as fit."""
        n = self._views_at_once(views, out)
        source = self.split if self._passes is None else self._passes
        for start, room in zip(range(0, len(views), n), torch.split(out, n * len(views[0]))):
            some = views[start : start + n]
            # Into its place, which casts it too: nothing else of a view is held while variants are resumed.
            room.copy_(source.features(_channels_last(torch.cat(some)), groups=len(some)))

    def _count(self, rows: int) -> None:
        self.rows_sent += rows

    def _choose(self, images: Tensor) -> None:
        self._passes, self.reason = None, ""
        self._chosen += 1
        if self.options.level == "plain":
            self.reason = "asked for"
            return
        # On a CPU a few images say as much; on a GPU what is traced here serves all later batches.
        images = images if images.is_cuda else images[:_COMPARED]
        # The live network's own answer, to compare the twin's with.
        clean = self.split.run(images)
        if self.split.plan == "whole":
            self.reason = "something bypasses the cut"
        # What is in half precision already has nothing to gain from a copy in another.
        elif clean.features.dtype != torch.float32:
            self.reason = f"the network computes in {clean.features.dtype}"
        else:
            asked = self.options.precision
            low = likes_bfloat16(images.device) if asked == "auto" else asked == "bfloat16"
            dtype = torch.bfloat16 if low else torch.float32
            try:
                level, shell, self._shell = self.options.level, self._shell, None
                self._passes = Passes(self.split, level, dtype, images, self.graphs, shell)
                self._passes.verify(clean)
            except CannotTwin as error:
                self._passes, self.reason = None, str(error)

    def _part(
        self,
        begun: Begun,
        variants: Variants,
        labels: Tensor,
        temperature: Tensor,
        rows: Tensor | None = None,
    ) -> Votes:
        """Votes of variants that fit, sample by sample if one variant of the batch does not."""
        n_rows = len(begun) if rows is None else len(rows)
        limit = self._rows_at_once()
        variants = self._without_views(begun, variants)
        # A batch that shares statistics cannot be cut: half of it is another batch.
        if n_rows <= limit or not self.independent:
            if self._passes is None or begun.moments is None:
                return count(self._plain(begun, variants, rows)[:, : len(labels)], labels, temperature)
            base = begun.base if rows is None else begun.base[rows]
            return self._passes.votes(base, begun.moments, variants, labels, temperature)
        parts = []
        for start in range(0, len(labels), limit):
            part = torch.arange(start, min(start + limit, len(labels)), device=labels.device)
            chosen = part if rows is None else rows[part]
            parts.append(self._part(begun, variants.of_rows(part), labels[part], temperature, chosen))
        return joined(parts, dim=1)

    def _without_views(self, begun: Begun, variants: Variants) -> Variants:
        """Make variants if there are views among them: what is before the cut has graphs and statistics of its own."""
        if self.split.plan == "whole" or not has_views(variants):
            return variants
        made = variants.make(begun.base)
        return GivenVariants(made.view(len(variants), -1, *made.shape[1:]))

    def _plain(self, begun: Begun, variants: Variants, rows: Tensor | None = None) -> Tensor:
        """Logits (V x N x C) by the live network."""
        # Whole passes of mirrored images and of changed features have nothing in common to join.
        if isinstance(variants, JoinedVariants) and self.split.plan == "whole":
            return torch.cat([self._plain(begun, kind, rows) for kind in variants.kinds])
        if isinstance(variants, ViewVariants) and self.split.plan == "whole":
            return torch.stack([self.split.logits(view, begun).float() for view in variants.images])
        base, n = begun.base if rows is None else begun.base[rows], len(variants)
        logits = self.split.resume(variants.make(base), begun, groups=n, rows=rows)
        return logits.float().view(n, len(base), -1)

    def _rows_at_once(self, held: int = 0) -> int:
        if self._limit is not None:
            return self._limit
        fits = max(1, (int(self.options.max_memory * GIB) - held) // (_LIVE * self._row_bytes))
        parameter = next(iter(self.split.network.parameters()), None)
        return min(fits, _CPU_ROWS) if parameter is None or parameter.device.type == "cpu" else fits

    def _views_at_once(self, views: tuple[Tensor, ...], out: Tensor) -> int:
        free = int(self.options.max_memory * GIB) - out.nbytes - sum(view.nbytes for view in views)
        row_bytes = _LIVE_BEFORE * self.split.widest_before * views[0].element_size()
        return max(1, free // (len(views[0]) * row_bytes))

    def _variants_at_once(self, n_variants: int, rows: int, held: int = 0) -> int:
        """As many as fit beside `held` bytes; a divisor if there is a good one, so that all chunks have one shape."""
        most = min(n_variants, max(1, self._rows_at_once(held) // rows))
        # Each new shape is traced and captured once, which costs more than a few smaller passes.
        divisor = next(d for d in range(most, 0, -1) if n_variants % d == 0)
        return divisor if 2 * divisor > most else most

    def _make_do_with_less(self, error: RuntimeError, sent: int, rows: int) -> None:
        """Halve what is sent at once after running out of memory; raise what is something else."""
        # Below this nothing can be cut further, and the error is the user's to see.
        smallest = 1 if self.independent else rows
        if not is_out_of_memory(error) or is_capturing() or min(sent, self._rows_at_once()) <= smallest:
            raise error
        self._limit = max(smallest, min(sent, self._rows_at_once()) // 2)
        # Graphs hold their memory for good: what is free for others is what they give back.
        self.graphs.forget()
        if self._passes is not None:
            self._passes.forget()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last) if images.ndim == 4 else images


def rows_that_fit(split: Split, features: Tensor, memory: float) -> int:
    """Return how many rows can be resumed at once in so many GiB (at least one)."""
    # A cut may itself be the widest place.
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
