"""The torchmetrics classes say what the functions say, and what torchmetrics says where both are right."""

from __future__ import annotations

import pytest
import torch

from sicl import metrics

torchmetrics = pytest.importorskip("torchmetrics")
from sicl.metrics.torchmetrics import Aurc, Auroc, Brier, ExpectedCalibrationError  # noqa: E402

G = torch.Generator().manual_seed(0)
CONFIDENCE = torch.rand(200, generator=G)
CORRECT = torch.rand(200, generator=G) < CONFIDENCE


@pytest.mark.parametrize(
    ("metric", "function"),
    [
        (ExpectedCalibrationError(), metrics.expected_calibration_error),
        (Brier(), metrics.brier_score),
        (Auroc(), metrics.auroc),
        (Aurc(), metrics.aurc),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_batches_add_up_to_the_function(metric: torchmetrics.Metric, function: object) -> None:
    """Two updates and one compute are one call of the function; reset starts anew."""
    for part in (slice(0, 90), slice(90, 200)):
        metric.update(CONFIDENCE[part], CORRECT[part])
    assert float(metric.compute()) == pytest.approx(float(function(CONFIDENCE, CORRECT)))  # type: ignore[operator]
    metric.reset()
    metric.update(CONFIDENCE[:90], CORRECT[:90])
    assert float(metric.compute()) == pytest.approx(float(function(CONFIDENCE[:90], CORRECT[:90])))  # type: ignore[operator]


def test_they_agree_with_torchmetrics() -> None:
    """ECE and AUROC of another implementation, on confidences that lie on no edge of a bin."""
    from torchmetrics.classification import BinaryAUROC

    auroc = Auroc()
    auroc.update(CONFIDENCE, CORRECT)
    assert float(auroc.compute()) == pytest.approx(float(BinaryAUROC()(CONFIDENCE, CORRECT.int())), abs=1e-5)
    # Theirs takes probabilities of class 1 and the class; a confidence that it is right is the same thing.
    theirs = torchmetrics.functional.classification.calibration_error(
        CONFIDENCE, CORRECT.int(), task="binary", n_bins=15, norm="l1"
    )
    ours = ExpectedCalibrationError()
    ours.update(CONFIDENCE, CORRECT)
    assert float(ours.compute()) == pytest.approx(float(theirs), abs=1e-5)
