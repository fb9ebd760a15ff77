"""Metrics: calibration error, proper scores, ranking and variance, as pure functions on tensors."""

from sicl.metrics.bins import ReliabilityBins, reliability_bins
from sicl.metrics.calibration import (
    EceByCorrectness,
    brier_score,
    ece_by_correctness,
    expected_calibration_error,
    maximum_calibration_error,
    negative_log_likelihood,
)
from sicl.metrics.ranking import (
    OperatingPoint,
    RiskCoverage,
    aurc,
    auroc,
    expected_risk,
    risk_coverage_curve,
    threshold_for_risk,
)
from sicl.metrics.streaming import CumulativeEce, SlidingEce, sliding_window_ece
from sicl.metrics.variance import (
    ClassStatistics,
    content_variance,
    gram_matrix,
    mahalanobis_distance,
    style_variance,
)

__all__ = [
    "ClassStatistics",
    "CumulativeEce",
    "EceByCorrectness",
    "OperatingPoint",
    "ReliabilityBins",
    "RiskCoverage",
    "SlidingEce",
    "aurc",
    "auroc",
    "brier_score",
    "content_variance",
    "ece_by_correctness",
    "expected_calibration_error",
    "expected_risk",
    "gram_matrix",
    "mahalanobis_distance",
    "maximum_calibration_error",
    "negative_log_likelihood",
    "reliability_bins",
    "risk_coverage_curve",
    "sliding_window_ece",
    "style_variance",
    "threshold_for_risk",
]
