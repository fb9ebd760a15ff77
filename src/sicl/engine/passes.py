"""Passes through a twin of the network: traced where that pays, captured where that is possible."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sicl.engine.graphs import Function, Graphs, effect, is_capturing, is_out_of_memory, relative_error, tuned
from sicl.engine.norms import batch_norms
from sicl.engine.split import Begun, Split
from sicl.engine.trace import TOLERANCE, Traced
from sicl.engine.twin import CannotTwin, Twin
from sicl.engine.variants import Variants, Votes, count

Level = Literal["auto", "plain", "twin", "traced", "graph"]

_WORTH_TRACING = 1 << 20
"""Values in a pass's features above which tracing (a fraction of a second, once a shape) pays."""
_MOST_SHAPES = 48
"""Traced shapes to keep; beyond, all are dropped (a stream of ever new batch sizes)."""


class Passes:
    """Votes and logits by a twin of the network in a compute dtype.

    `generation` changes whenever what was traced is dropped; `ran` is the level that ran last.

    Args:
        split: the live network.
        level: "auto", "twin", "traced" or "graph".
        dtype: to compute in.
        images: an example batch.
        graphs: where what is captured belongs to.
        shell: for the twin, if it was made before.

    Raises:
        CannotTwin: this network cannot have a twin.
    """

    def __init__(
        self,
        split: Split,
        level: Level,
        dtype: torch.dtype,
        images: Tensor,
        graphs: Graphs,
        shell: nn.Module | None = None,
    ) -> None:
        self.split, self.level, self.dtype = split, level, dtype
        # Before anything is promised: a network that cannot have a twin raises here.
        self.twin = Twin(split, dtype, shell)
        self.notes: list[str] = []
        self.ran = "twin"
        self.generation = 0
        self._shape = (tuple(images.shape[1:]), images.device)
        self._traced: dict[tuple[tuple[int, ...], int, bool], Traced | None] = {}
        self._loaded: tuple[Tensor, str] | None = None
        # Their running statistics move without moving in memory, and are an input of each pass.
        modules, norms = list(split.network.modules()), set(batch_norms(split.network))
        reads = [m._parameters for m in modules] + [m._buffers for m in modules if m not in norms]
        # Running statistics reach variants as an input, but the part before the cut reads them where they are.
        running = [] if split.statistics == "batch" else [norm._buffers for norm in norms]
        self._prefix = graphs.captures("the part before the cut", [*reads, *running])
        # More keys than for the prefix: each number of variants has its own.
        self._suffix = graphs.captures("the variants", reads, most=24)

    @property
    def captures(self) -> bool:
        """Whether passes may be captured at all."""
        return self.level in ("auto", "graph")

    def fits(self, images: Tensor) -> bool:
        """Say whether the twin is one of the network as it stands, for images like these."""
        return self._shape == (tuple(images.shape[1:]), images.device) and self.twin.fits()

    def features(self, images: Tensor, *, groups: int = 1) -> Tensor:
        """Run a batch up to the cut, or `groups` stacked batches."""
        if not self.captures:
            return self.split.features(images, groups=groups)
        key = (groups, *images.shape)
        features: Tensor = self._prefix(key, lambda t: self.split.features(t[0], groups=groups), [images])
        return features

    def begin(self, images: Tensor, features: Tensor | None = None) -> Begun:
        """Run a clean batch up to the cut, and take its statistics where variants keep them."""
        features = self.features(images) if features is None else features
        # Staged now: another batch may be begun before the variants of this one are asked for.
        base, moments = self.cast(features), self.twin.stage()
        if self.twin.records:
            traced = self._trace(base, 1, records=True)
            key = ("record", tuple(base.shape))
            moments = self._replayed(traced is not None, key, lambda t: self._record(*t), [base, moments])
        return Begun(images, features, base, moments=moments)

    def cast(self, features: Tensor) -> Tensor:
        """Return features in the compute dtype, channels last."""
        # The layout that convolutions in 16 bits like best, and the only one that the Triton kernels read.
        layout = torch.channels_last if features.ndim == 4 else torch.contiguous_format
        return features.to(self.dtype, memory_format=layout)

    def verify(self, clean: Begun) -> None:
        """Raise `CannotTwin` unless resuming the clean features gives the network's own logits, nearly."""
        assert clean.logits is not None
        # A wrong twin is found here, on the first batch, before any vote depends on it.
        try:
            begun = self.begin(clean.images, clean.features)
            assert begun.moments is not None
            off = relative_error(self._resume(begun.base, 1, begun.moments), clean.logits)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            # A network may run in float32 and fail in 16 bits.
            raise CannotTwin(f"the network does not run in {self.dtype} ({error})") from error
        if not off < TOLERANCE[self.dtype]:
            raise CannotTwin(f"logits in {self.dtype} are off by {off:.1%}")

    def votes(
        self, base: Tensor, moments: Tensor, variants: Variants, labels: Tensor, temperature: Tensor
    ) -> Votes:
        """Make the variants, resume them, and count on the first rows, as many as there are labels."""

        def counted(logits: Tensor, labels: Tensor, temperature: Tensor) -> Votes:
            return count(logits[:, : len(labels)], labels, temperature)

        votes: Votes = self._resumed("votes", counted, [base, moments, labels, temperature], variants)
        return votes

    def logits(self, base: Tensor, moments: Tensor, variants: Variants) -> Tensor:
        """Make the variants and resume them: V x N x C."""
        logits: Tensor = self._resumed("logits", lambda logits: logits, [base, moments], variants)
        return logits

    def forget(self) -> None:
        """Give back the memory of what was traced and captured."""
        self.generation += 1
        self._prefix.forget()
        self._suffix.forget()
        self._traced.clear()
        self._loaded = None

    def _resumed(self, what: str, read: Callable[..., Any], inputs: list[Tensor], variants: Variants) -> Any:
        """Return what `read` makes of variants' logits (V x N x C) and the inputs after base and statistics.

        By a graph, unless they are known to have no traced pass.
        """
        n, (rows, *sizes) = len(variants), inputs[0].shape

        def function(tensors: list[Tensor]) -> Any:
            # From the list, not from the caller's frame: a graph reads its own copies of the inputs.
            base, moments, *others = tensors[: len(inputs)]
            made = variants.with_tensors(tensors[len(inputs) :]).make(base)
            return read(self._resume(made, n, moments).view(n, rows, -1), *others)

        tensors = [*inputs, *variants.tensors()]
        key = (what, variants.kind(), n, *(tuple(t.shape) for t in tensors))
        # What cannot be traced is made of Python calls, some of which cannot be captured.
        known = self._traced.get(((n * rows, *sizes), n, False), "not yet")
        return self._replayed(known is not None, key, function, tensors)

    def _replayed(self, possible: bool, key: Any, function: Function, tensors: list[Tensor]) -> Any:
        if not possible or not self.captures:
            return function(tensors)
        # With the generation: a graph holds tensors of the traced pass it was captured from.
        return self._suffix((self.generation, *key), function, tensors)

    def _resume(self, made: Tensor, groups: int, moments: Tensor) -> Tensor:
        traced = self._trace(made, groups)
        level = "twin" if traced is None else "traced"
        self._load(level, (traced or self.twin).load, moments)
        effect(partial(setattr, self, "ran", "graph" if traced and is_capturing() else level))
        return self.twin.resume(made, groups) if traced is None else traced(made)

    def _record(self, base: Tensor, moments: Tensor) -> Tensor:
        """Return the statistics with those of the clean batch among them."""
        traced = self._trace(base, 1, records=True)
        self._load("record", (traced or self.twin).load, moments)
        (traced or self.twin.record)(base)
        return self.twin.moments.clone()

    def _load(self, what: str, load: Callable[[Tensor], None], moments: Tensor) -> None:
        """Take over the network as it stands: in a graph always, else once a begun batch."""
        if is_capturing():
            self._unload()
            effect(self._unload)
        elif self._loaded is not None and self._loaded[0] is moments and self._loaded[1] == what:
            return
        else:
            # By identity: the same staged statistics mean the same begun batch, already loaded.
            self._loaded = (moments, what)
        load(moments)

    def _unload(self) -> None:
        self._loaded = None

    def _trace(self, made: Tensor, groups: int, *, records: bool = False) -> Traced | None:
        """The traced pass for features of this shape; None if it is not worth it or not possible."""
        # On a GPU launches dominate small passes, so tracing pays there at any size.
        small = made.numel() < _WORTH_TRACING and made.device.type == "cpu"
        if self.level == "twin" or (self.level == "auto" and small):
            return None
        key = (tuple(made.shape), groups, records)
        if key not in self._traced:
            # All at once: which of them a stream will bring again, nobody knows.
            if len(self._traced) >= _MOST_SHAPES:
                self.forget()
            self._traced[key] = self._made(made, groups, records)
        return self._traced[key]

    def _made(self, made: Tensor, groups: int, records: bool) -> Traced | None:
        try:
            # Tracing runs every convolution for the first time, and cuDNN keeps what it chose then.
            with tuned(made.device):
                traced = Traced(self.twin, made, groups, records=records)
                traced.load(self.twin.moments.clone())
                traced.settle(made)
        except CannotTwin as error:
            # The twin itself still runs; the note says why nothing faster does.
            self.notes.append(str(error))
            return None
        finally:
            self._unload()
        self.notes.extend(traced.notes)
        return traced
