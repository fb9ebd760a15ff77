"""What flows between the rooms: a batch of the stream, a prediction, labelled source data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sicl.errors import InputError, require_between

if TYPE_CHECKING:
    from torch import Tensor

OOD_LABEL = -1
"""The label of an out-of-distribution sample: it counts for OOD AUROC, never for accuracy or ECE."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch of a stream, as the benchmark sees it; methods and calibrators see `images` only.

    Args:
        images: float32, N x 3 x H x W, in [0, 1]; normalisation belongs to the model.
        labels: int64, N; `OOD_LABEL` marks an out-of-distribution sample.
        domains: the name of each sample's corruption (or "clean", "ood:mnist"), N of them.
    """

    images: Tensor
    labels: Tensor
    domains: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.domains)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a calibrated classifier says about a batch. All tensors are detached, on the model's device.

    Args:
        labels: int64, N; the adapter's own predicted classes (calibration never changes them).
        confidence: float32, N, in [0, 1]; the likelihood that the label is right.
        logits: N x C, the adapter's own.
        signals: what the confidence was made from, by name, each N or a scalar.
    """

    labels: Tensor
    confidence: Tensor
    logits: Tensor
    signals: Mapping[str, Tensor] = field(default_factory=dict)

    def accept(self, threshold: float) -> Tensor:
        """Return a boolean mask of the samples whose confidence reaches `threshold`."""
        require_between(0.0, 1.0, threshold=threshold)
        return self.confidence >= threshold

    def __len__(self) -> int:
        return int(self.labels.shape[0])


@dataclass(frozen=True, slots=True)
class SourceData:
    """Labelled data of the source domain, for the methods that need some (EATA, TS, TransCal).

    Args:
        images: float, N x C x H x W, in [0, 1].
        labels: int64, N.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.images.ndim != 4 or self.labels.ndim != 1 or len(self.images) != len(self.labels):
            raise InputError(
                "`SourceData` needs N x C x H x W images and N labels, got shapes "
                f"{tuple(self.images.shape)} and {tuple(self.labels.shape)}."
            )
        if len(self.images) == 0:
            raise InputError("`SourceData` needs at least one image, got none.")

    def __len__(self) -> int:
        return int(self.labels.shape[0])
