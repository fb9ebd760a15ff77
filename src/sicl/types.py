"""What flows between the rooms: a batch of the stream, a prediction, labelled source data."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sicl.errors import InputError, OptionError, require_between
from sicl.selective import (
    DELTA,
    MISCALIBRATION,
    bounded_threshold,
    calibrated_probabilities,
    expected_threshold,
    prediction_sets,
    require_share,
)

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


class AlarmWarning(UserWarning):
    """A monitor is alarmed, so nothing is accepted at a promised risk."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a calibrated classifier says about a batch. All tensors are detached, on the model's device.

    Args:
        labels: int64, N; the adapter's own predicted classes (calibration never changes them).
        confidence: float32, N, in [0, 1]; the likelihood that the label is right.
        logits: N x C, the adapter's own.
        signals: what the confidence was made from, by name, each N or a scalar.
        alarm: why the confidence must not be acted on, as a monitor says it; empty while all is well.
        recent: the last confidences of the stream, this batch's among them; None if the batch stands by itself.
    """

    labels: Tensor
    confidence: Tensor
    logits: Tensor
    signals: Mapping[str, Tensor] = field(default_factory=dict)
    alarm: str = ""
    recent: Tensor | None = field(default=None, repr=False, compare=False)

    def accept(
        self,
        threshold: float | None = None,
        *,
        risk: float | None = None,
        delta: float | None = DELTA,
        labelled: tuple[Tensor, Tensor] | None = None,
        miscalibration: float = MISCALIBRATION,
    ) -> Tensor:
        """Return a boolean mask of the samples to act on.

        With `threshold`: those whose confidence reaches it. With `risk`: those that reach the lowest threshold at
        which the accepted of the recent stream (a batch that stands by itself: of the batch) err more often than at
        `risk` with probability `delta` at most, by chance or because the stream is miscalibrated: by the calibrated
        confidence alone. With `labelled` samples the bound holds with probability 1 - `delta` for samples like those,
        whatever the confidence is worth. While a monitor is alarmed, `risk` accepts nothing and warns why.

        Args:
            threshold: in [0, 1].
            risk: the error rate allowed among the accepted, between 0 and 1.
            delta: how often the accepted may err more often than at `risk`; None: the risk holds in the mean over
                streams, which half of them exceed.
            labelled: (confidence, correct) of samples like these.
            miscalibration: how far a stream's accuracy lies from its mean confidence, as a standard deviation (where
                that is one half); counts with `delta` and without labels.

        Raises:
            OptionError: not exactly one of `threshold` and `risk` is given, or a value is out of range.
        """
        if threshold is not None and risk is None:
            require_between(0.0, 1.0, threshold=threshold)
            return self.confidence >= threshold
        if threshold is not None or risk is None:
            raise OptionError("`accept` needs either a `threshold` or a `risk`; give exactly one of them.")
        require_share(risk=risk, delta=DELTA if delta is None else delta)
        if labelled is not None and delta is None:
            raise OptionError("`delta` must be a number where `labelled` samples bound the risk, got None.")
        if self.alarm:
            warnings.warn(f"Nothing is accepted at a promised risk: {self.alarm}", AlarmWarning, stacklevel=2)
            return self.confidence > 1
        if labelled is not None and delta is not None:
            lowest = bounded_threshold(*labelled, risk=risk, delta=delta)
        else:
            stream = self.confidence if self.recent is None else self.recent
            lowest = expected_threshold(stream, risk, delta=delta, miscalibration=miscalibration)
        # Compared as it was sorted: a float32 threshold must find its own sample again.
        return self.confidence.double() >= lowest

    @property
    def probabilities(self) -> Tensor:
        """Return N x C calibrated probabilities: the largest entry is the confidence, order and ties are kept."""
        return calibrated_probabilities(self.logits, self.confidence)

    def sets(self, coverage: float = 0.9) -> Tensor:
        """Return N x C, true for the classes of each sample's smallest set that holds `coverage` probability."""
        return prediction_sets(self.probabilities, coverage)

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
