"""The package's metrics as torchmetrics `Metric` classes: update with (confidence, correct), compute at the end."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sicl.errors import OptionError
from sicl.metrics.calibration import brier_score, expected_calibration_error
from sicl.metrics.ranking import aurc, auroc

try:
    from torchmetrics import Metric
    from torchmetrics.utilities import dim_zero_cat
except ImportError as error:
    raise OptionError(
        "`sicl.metrics.torchmetrics` needs the package torchmetrics; install it with `pip install 'sicl[metrics]'`."
    ) from error


class ConfidenceMetric(Metric):
    """Keeps the confidences and whether each prediction was right; `value` makes a number of them."""

    full_state_update = False
    is_differentiable = False
    confidence: list[Tensor]
    correct: list[Tensor]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.add_state("confidence", default=[], dist_reduce_fx="cat")
        self.add_state("correct", default=[], dist_reduce_fx="cat")

    def update(self, confidence: Tensor, correct: Tensor) -> None:
        """Take in a batch.

        Args:
            confidence: N, in [0, 1].
            correct: N booleans: whether each prediction was right.
        """
        self.confidence.append(confidence.detach().float())
        self.correct.append(correct.detach().bool())

    def compute(self) -> Tensor:
        """Return the metric over all batches so far."""
        return torch.tensor(self.value(dim_zero_cat(self.confidence), dim_zero_cat(self.correct)))

    def value(self, confidence: Tensor, correct: Tensor, /) -> float:
        """Return the number; a subclass says which."""
        raise NotImplementedError


class ExpectedCalibrationError(ConfidenceMetric):
    """Mean gap between confidence and accuracy over bins; see `sicl.metrics.expected_calibration_error`.

    Args:
        n_bins: equal-width bins.
        options: torchmetrics' own.
    """

    higher_is_better = False

    def __init__(self, n_bins: int = 15, **options: Any) -> None:
        super().__init__(**options)
        self.n_bins = n_bins

    def value(self, confidence: Tensor, correct: Tensor, /) -> float:
        """Return the error."""
        return expected_calibration_error(confidence, correct, n_bins=self.n_bins)


class Brier(ConfidenceMetric):
    """Mean squared distance of confidence and correctness; see `sicl.metrics.brier_score`."""

    higher_is_better = False
    value = staticmethod(brier_score)


class Auroc(ConfidenceMetric):
    """How well confidence tells right from wrong; see `sicl.metrics.auroc`."""

    higher_is_better = True
    value = staticmethod(auroc)


class Aurc(ConfidenceMetric):
    """Area under the risk-coverage curve; see `sicl.metrics.aurc`."""

    higher_is_better = False
    value = staticmethod(aurc)
