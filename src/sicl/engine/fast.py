"""Passes through a twin of the network: traced, prepared once a batch, captured where that pays."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from sicl.engine.graphs import Captured, Replay, is_capturing, is_out_of_memory, new_pool, tuned
from sicl.engine.prefix import Prefix
from sicl.engine.split import Split
from sicl.engine.trace import TOLERANCE, FusedSuffix, relative_error
from sicl.engine.twin import CannotTwin, Twin
from sicl.engine.variants import Resume, Variants, Votes, vote

Step = Callable[[list[Tensor], Resume], list[Tensor]]
"""Works on tensors, and resumes features by what it is given for it."""

_WORTH_TRACING = 1 << 20
"""Values in a pass's features above which tracing (a fraction of a second, once a shape) pays."""
_MOST_SHAPES = 48
"""Traced shapes to keep; beyond, all are dropped (a stream of ever new batch sizes)."""


class FastPasses:
    """Votes by a twin of the network in a compute dtype.

    Args:
        split: the live network.
        way: "auto", "twin", "fused", "graph" or "compile".
        dtype: to compute in.
        images: an example batch.
        frozen: whether variants keep the clean batch's statistics.

    Raises:
        CannotTwin: this network cannot have a twin.
    """

    def __init__(self, split: Split, way: str, dtype: torch.dtype, images: Tensor, frozen: bool) -> None:
        self.split, self.way, self.dtype = split, way, dtype
        self.twin = Twin(split, dtype, images, frozen=frozen)
        self.notes: list[str] = []
        self._prefix = Prefix(split, self.notes)
        self._kind = (tuple(images.shape[1:]), images.device)
        self._suffixes: dict[tuple[tuple[int, ...], int, bool], FusedSuffix | None] = {}
        self._captures: dict[Hashable, Captured | None] = {}
        self._fresh: set[str] = set()
        self._prepared: dict[Hashable, Replay] = {}
        self._clean: Tensor | None = None
        self._pool = new_pool(images.device)
        self._used = "twin"
        self.traced = object()

    @property
    def name(self) -> str:
        """What ran last, and the dtype."""
        return f"{self._used} {str(self.dtype).removeprefix('torch.')}"

    def fits(self, images: Tensor) -> bool:
        """Say whether the twin is one of the network as it stands, for images like these."""
        return self._kind == (tuple(images.shape[1:]), images.device) and self.twin.fits()

    def features(self, images: Tensor, *, view: bool = False) -> Tensor:
        """Run a batch (or another view of it) up to the cut."""
        run = self._prefix if self.captures(images.device) else self._prefix.plain
        return run(images, view=view)

    def take_over(self, device: torch.device) -> None:
        """Take over the network as it stands, as far as that is possible without a batch.

        In the graph of a whole look the weights are cast here, which nothing before the cut waits for;
        elsewhere when they are first needed.
        """
        self.twin.stage()
        self._fresh.clear()
        if not is_capturing(device):
            return
        records = self.twin.records_first
        traced = (
            suffix for (_, _, r), suffix in self._suffixes.items() if r == records and suffix is not None
        )
        suffix = next(traced, None)
        if suffix is not None and records:
            self._fresh.add("recording")
            suffix.prepare()
        elif suffix is not None:
            self._prepare(suffix)

    def begin(self, features: Tensor) -> Tensor:
        """Take over what the batch decides; return the features to make variants of."""
        base = self.cast(features)
        if self.twin.records_first:
            suffix = self._suffix(base, 1, records=True)
            if suffix is None:
                self._refresh_twin()
                self.twin.record(base)
            else:
                self._record(suffix, base)
        return base

    def cast(self, features: Tensor) -> Tensor:
        """Return features in the compute dtype, channels last."""
        layout = torch.channels_last if features.ndim == 4 else torch.contiguous_format
        return features.to(self.dtype, memory_format=layout)

    def _record(self, suffix: FusedSuffix, base: Tensor) -> None:
        """Take over the network and the clean batch's statistics."""
        if not self.captures(base.device):
            if "recording" not in self._fresh:
                suffix.prepare()
            suffix(base)
            return
        if self._clean is None or self._clean.shape != base.shape:
            self._clean = base.clone(memory_format=torch.preserve_format)
            self._prepared.pop("record", None)
        clean = self._clean.copy_(base)

        def both() -> None:
            suffix.prepare()
            suffix(clean)

        self._prepared.setdefault("record", Replay(both, suffix.live_tensors, self._pool))()

    def captures(self, device: torch.device) -> bool:
        """Say whether passes are captured as graphs of their own (not while they go into a larger one)."""
        return device.type == "cuda" and self.way in ("auto", "graph", "compile") and not is_capturing(device)

    def verify(self, features: Tensor, logits: Tensor) -> None:
        """Raise `CannotTwin` unless resuming the clean features gives the network's own logits, nearly."""
        self.take_over(features.device)
        again = self._resume(self.begin(features), 1)
        error = relative_error(again, logits)
        if not error < TOLERANCE[self.dtype]:
            raise CannotTwin(f"logits in {self.dtype} are off by {error:.1%}")

    def vote(self, variants: Variants, features: Tensor, labels: Tensor, temperature: Tensor) -> Votes:
        """Make the variants, resume them, and count; as one captured graph from the second time on."""
        tensors = [features, labels, temperature, *variants.tensors()]

        def step(tensors: list[Tensor], resume: Resume) -> list[Tensor]:
            features, labels, temperature, *described = tensors
            votes = vote(variants.with_tensors(described), features, labels, temperature, resume)
            return [votes.soft, votes.hard]

        shape = (len(variants) * len(features), *features.shape[1:])
        soft, hard = self._replayed(type(variants), tensors, step, shape, len(variants))
        return Votes(hard, soft)

    def logits(self, features: Tensor) -> Tensor:
        """Resume one batch; as a captured graph from the second time on."""
        base = self.cast(features)
        step: Step = lambda tensors, resume: [resume(tensors[0], 1)]  # noqa: E731
        try:
            return self._replayed("logits", [base], step, tuple(base.shape), 1)[0]
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            self.forget()
            return self._resume(base, 1)

    def _replayed(
        self, kind: Hashable, tensors: list[Tensor], step: Step, shape: tuple[int, ...], groups: int
    ) -> list[Tensor]:
        """Run `step`, which resumes features of `shape`; by a graph if it ran before with such tensors."""
        key = (kind, *(tuple(t.shape) for t in tensors))
        suffix = self._suffixes.get((shape, groups, False))
        if not self.captures(tensors[0].device) or key not in self._captures or suffix is None:
            self._captures.setdefault(key, None)
            return step(tensors, self._resume)
        self._prepare(suffix)
        captured = self._captures[key] or self._capture(step, tensors, suffix)
        self._captures[key] = captured
        if captured is None:
            return step(tensors, self._resume)
        self._used = "graph"
        return [tensor.clone() for tensor in captured(tensors)]

    def _capture(self, step: Step, tensors: list[Tensor], suffix: FusedSuffix) -> Captured | None:
        def resumed(tensors: list[Tensor]) -> list[Tensor]:
            return step(tensors, lambda made, _groups: suffix(made))

        try:
            captured = Captured(resumed, tensors, self._pool)
            found, expected = captured(tensors)[0], resumed(tensors)[0]
            off = float((found - expected).abs().max()) / max(1.0, float(expected.abs().max()))
            if not off < 1e-3:
                raise RuntimeError(f"it is off by {off:.3g}")
            return captured
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self.way = "fused"
            self.notes.append(f"no CUDA graph: {error}")
            return None

    def taken_over(self) -> frozenset[str]:
        """Return what was taken over of the live network for the last batch."""
        return frozenset(self._fresh)

    def back_to(self, taken_over: frozenset[str]) -> None:
        """Go on as if the last batch had been begun here; a graph did it."""
        self._fresh, self._used = set(taken_over), "graph"

    def _resume(self, made: Tensor, groups: int) -> Tensor:
        suffix = self._suffix(made, groups)
        if suffix is None:
            self._used = "twin"
            self._refresh_twin()
            return self.twin.resume(made, groups)
        self._used = "compile" if suffix.compiled else "fused"
        self._prepare(suffix)
        return suffix(made)

    def _suffix(self, made: Tensor, groups: int, *, records: bool = False) -> FusedSuffix | None:
        """The traced suffix for features of this shape; None if it is not worth it or not possible."""
        small = made.numel() < _WORTH_TRACING and made.device.type == "cpu"
        if self.way == "twin" or (self.way == "auto" and small):
            return None
        key = (tuple(made.shape), groups, records)
        if key not in self._suffixes:
            if len(self._suffixes) >= _MOST_SHAPES:
                self.forget()
            self._suffixes[key] = self._traced(made, groups, records)
        return self._suffixes[key]

    def _traced(self, made: Tensor, groups: int, records: bool) -> FusedSuffix | None:
        try:
            # Tracing runs every convolution for the first time, and cuDNN keeps what it chose then.
            with tuned(made.device):
                suffix = FusedSuffix(self.twin, made, groups, records=records)
                suffix.prepare()
                suffix.settle(made, compiled=self.way == "compile")
        except CannotTwin as error:
            self.notes.append(str(error))
            return None
        self.notes.extend(suffix.notes)
        return suffix

    def _prepare(self, suffix: FusedSuffix) -> None:
        """Take over the live network once a batch (what is written is the same for every shape)."""
        if "suffixes" in self._fresh:
            return
        self._fresh.add("suffixes")
        if self.captures(suffix.device):
            replay = Replay(suffix.prepare, suffix.live_tensors, self._pool)
            self._prepared.setdefault("suffixes", replay)()
        else:
            suffix.prepare()

    def _refresh_twin(self) -> None:
        if "twin" not in self._fresh:
            self._fresh.add("twin")
            self.twin.refresh()

    def forget(self) -> None:
        """Give back the memory of what was traced and captured; `traced` is another object then."""
        self.traced = object()
        self._prefix.forget()
        self._captures.clear()
        self._prepared.clear()
        self._suffixes.clear()
        self._fresh.clear()
