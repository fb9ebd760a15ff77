"""Variants of a batch as small tensors that say how to make them, and the votes they give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from sicl import perturb


@dataclass(frozen=True)
class Variants(ABC):
    """V variants of N features, described by small tensors, its fields (the last may be None); `make` writes them out.

    Laws: `part(a, b)` makes the variants a to b-1, `of_rows(rows)` those of some samples, exactly as the
    whole would; `with_tensors(tensors())` is the same again.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def part(self, start: int, stop: int) -> Variants:
        """Return the variants from `start` to `stop`."""

    @abstractmethod
    def of_rows(self, rows: Tensor) -> Variants:
        """Return the variants of these samples."""

    @abstractmethod
    def make(self, features: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the variants of the features, stacked variant after variant, in the features' dtype.

        Args:
            features: N, channels last in memory.
            out: where to write them, if given; V N of the same layout.
        """

    def tensors(self) -> list[Tensor]:
        """Return the tensors that describe the variants."""
        values = (getattr(self, field.name) for field in fields(self))
        return [value for value in values if value is not None]

    def kind(self) -> Hashable:
        """Return what else describes them: the same for variants that differ in their tensors only."""
        return type(self).__name__

    def with_tensors(self, tensors: list[Tensor]) -> Variants:
        """Return variants of the same kind from other tensors."""
        return type(self)(*tensors)


@dataclass(frozen=True)
class StyleVariants(Variants):
    """Each sample's channels under an affine map: scale f + shift, both V x N x C."""

    scale: Tensor
    shift: Tensor

    def __len__(self) -> int:
        return len(self.scale)

    def part(self, start: int, stop: int) -> StyleVariants:
        return StyleVariants(self.scale[start:stop], self.shift[start:stop])

    def of_rows(self, rows: Tensor) -> StyleVariants:
        return StyleVariants(self.scale[:, rows], self.shift[:, rows])

    def make(self, features: Tensor, out: Tensor | None = None) -> Tensor:
        return perturb.apply_map(features, self.scale, self.shift, out=out)


@dataclass(frozen=True)
class ContentVariants(Variants):
    """Noise on every value, scaled channel by channel: f + std e.

    Args:
        std: N x C, the noise's standard deviation (times the scale).
        noise: V x L normal values; a sample's noise is a window of its variant's block (`perturb.windows`).
        rows: N, the number of each sample's window.
    """

    std: Tensor
    noise: Tensor
    rows: Tensor | None = None

    def __len__(self) -> int:
        return len(self.noise)

    def part(self, start: int, stop: int) -> ContentVariants:
        return ContentVariants(self.std, self.noise[start:stop], self.rows)

    def of_rows(self, rows: Tensor) -> ContentVariants:
        return ContentVariants(self.std[rows], self.noise, rows if self.rows is None else self.rows[rows])

    def make(self, features: Tensor, out: Tensor | None = None) -> Tensor:
        return perturb.window_variants(features, self.std, self.noise, self.rows, out=out)


@dataclass(frozen=True)
class GivenVariants(Variants):
    """Features computed elsewhere: V x (features' shape)."""

    features: Tensor

    def __len__(self) -> int:
        return len(self.features)

    def part(self, start: int, stop: int) -> GivenVariants:
        return GivenVariants(self.features[start:stop])

    def of_rows(self, rows: Tensor) -> GivenVariants:
        return GivenVariants(self.features[:, rows])

    def make(self, features: Tensor, out: Tensor | None = None) -> Tensor:
        made = self.features.flatten(0, 1)
        return made.to(features.dtype) if out is None else out.copy_(made)


@dataclass(frozen=True)
class ViewVariants(Variants):
    """Other views of the images, such as the mirrored ones: features are computed only when they are made.

    Args:
        images: V views, each like the batch.
        prefix: writes the features of views to the memory that it is given.
    """

    images: tuple[Tensor, ...]
    prefix: Callable[[tuple[Tensor, ...], Tensor], None]

    def __len__(self) -> int:
        return len(self.images)

    def part(self, start: int, stop: int) -> ViewVariants:
        return replace(self, images=self.images[start:stop])

    def of_rows(self, rows: Tensor) -> ViewVariants:
        return replace(self, images=tuple(view[rows] for view in self.images))

    def make(self, features: Tensor, out: Tensor | None = None) -> Tensor:
        made = perturb.room_for(features, len(self)) if out is None else out
        self.prefix(self.images, made)
        return made

    def tensors(self) -> list[Tensor]:
        return [*self.images]

    def with_tensors(self, tensors: list[Tensor]) -> ViewVariants:
        return replace(self, images=tuple(tensors))


@dataclass(frozen=True)
class JoinedVariants(Variants):
    """Variants of several kinds, one after the other."""

    kinds: tuple[Variants, ...]

    def __len__(self) -> int:
        return sum(map(len, self.kinds))

    def part(self, start: int, stop: int) -> Variants:
        # Kinds keep their order, so that votes can be split by kind again.
        parts, before = [], 0
        for kind in self.kinds:
            first, last = max(start - before, 0), min(stop - before, len(kind))
            if first < last:
                parts.append(kind.part(first, last))
            before += len(kind)
        return together(parts)

    def of_rows(self, rows: Tensor) -> JoinedVariants:
        return JoinedVariants(tuple(kind.of_rows(rows) for kind in self.kinds))

    def make(self, features: Tensor, out: Tensor | None = None) -> Tensor:
        # Each kind writes straight into its place: joining afterwards would copy all variants.
        made = perturb.room_for(features, len(self)) if out is None else out
        rows = [len(kind) * len(features) for kind in self.kinds]
        for kind, part in zip(self.kinds, torch.split(made, rows)):
            kind.make(features, part)
        return made

    def tensors(self) -> list[Tensor]:
        return [tensor for kind in self.kinds for tensor in kind.tensors()]

    def kind(self) -> Hashable:
        return tuple((kind.kind(), len(kind)) for kind in self.kinds)

    def with_tensors(self, tensors: list[Tensor]) -> JoinedVariants:
        # Taken in the order in which `tensors` gave them.
        left = iter(tensors)
        return JoinedVariants(
            tuple(kind.with_tensors(list(islice(left, len(kind.tensors())))) for kind in self.kinds)
        )


def together(kinds: Iterable[Variants]) -> Variants:
    """Return variants of several kinds as one; neighbouring views of one engine become one kind, made at once."""
    parts: list[Variants] = []
    for kind in kinds:
        last = parts[-1] if parts else None
        if isinstance(kind, ViewVariants) and isinstance(last, ViewVariants):
            parts[-1] = replace(last, images=(*last.images, *kind.images))
        else:
            parts.append(kind)
    return parts[0] if len(parts) == 1 else JoinedVariants(tuple(parts))


def has_views(variants: Variants) -> bool:
    """Say whether some of the variants are views, whose features are still to be computed."""
    kinds = variants.kinds if isinstance(variants, JoinedVariants) else (variants,)
    return any(isinstance(kind, ViewVariants) for kind in kinds)


@dataclass(frozen=True)
class Votes:
    """What V variants say about N predicted labels.

    Args:
        hard: V x N, 1 where the variant's predicted class is the label, else 0.
        soft: V x N, the variant's probability of the label.
        entropy: V x N, of the variant's prediction, in nats.
        classes: V x K, the variant's probabilities of all classes, summed over the samples.
    """

    hard: Tensor
    soft: Tensor
    entropy: Tensor
    classes: Tensor

    def __len__(self) -> int:
        return len(self.soft)

    def of(self, kind: Literal["hard", "soft"]) -> Tensor:
        """Return the votes of one kind, V x N."""
        return self.hard if kind == "hard" else self.soft

    def mean(self, kind: Literal["hard", "soft"]) -> Tensor:
        """Return each sample's mean vote."""
        return self.of(kind).mean(dim=0)

    def split(self, sizes: list[int]) -> list[Votes]:
        """Return the votes of so many variants at a time."""
        return [Votes(*parts) for parts in zip(*(torch.split(kind, sizes) for kind in self.kinds))]

    @property
    def kinds(self) -> tuple[Tensor, ...]:
        """All that is known of the variants, each V x something."""
        return self.hard, self.soft, self.entropy, self.classes


def joined(parts: list[Votes], dim: int = 0) -> Votes:
    """Return the votes of several parts, variants (0) or samples (1), as one."""
    if len(parts) == 1:
        return parts[0]
    hard, soft, entropy, classes = zip(*(part.kinds for part in parts))
    summed = torch.cat(classes) if dim == 0 else torch.stack(classes).sum(dim=0)
    return Votes(torch.cat(hard, dim), torch.cat(soft, dim), torch.cat(entropy, dim), summed)


def count(logits: Tensor, labels: Tensor, temperature: Tensor | float = 1.0) -> Votes:
    """Return what the logits of V variants (V x N x C) say about N labels; soft votes at a temperature."""
    # Before the temperature, which changes no order.
    hard = (logits.argmax(dim=-1) == labels).float()
    # In 16 bits a probability near 1 has no digits left.
    probabilities = (logits / temperature).float().softmax(dim=-1)
    soft = probabilities.gather(-1, labels.expand(len(logits), -1).unsqueeze(-1)).squeeze(-1)
    entropy = torch.special.entr(probabilities).sum(dim=-1)
    return Votes(hard, soft, entropy, probabilities.sum(dim=1))


def predicted_probability(logits: Tensor, labels: Tensor) -> Tensor:
    """Return softmax(logits)[label] of each row, in float32."""
    return logits.float().softmax(dim=-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)
