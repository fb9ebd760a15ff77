"""ContentVariance and StyleVariance against SciPy, scikit-learn and cases by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from sklearn.covariance import empirical_covariance, shrunk_covariance

from sicl import metrics
from sicl.errors import InputError


def embeddings() -> tuple[torch.Tensor, torch.Tensor]:
    """Return 60 embeddings of 4 dimensions in 3 classes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 3
    return torch.randn(60, 4, generator=generator) * torch.tensor([1, 2, 3, 4]) + labels[:, None], labels


def test_shrunk_covariance_matches_scikit_learn() -> None:
    """The documented shrinkage is scikit-learn's."""
    values, labels = embeddings()
    fitted = metrics.ClassStatistics.fit(values, labels, n_classes=3, shrinkage=0.3)
    members = values[labels == 1].double().numpy()
    expected = shrunk_covariance(empirical_covariance(members), shrinkage=0.3)
    np.testing.assert_allclose(fitted.covariances[1].numpy(), expected)
    np.testing.assert_allclose(fitted.centroids[1].numpy(), members.mean(0))


def test_mahalanobis_distance_matches_scipy() -> None:
    """Every sample is measured against its own class."""
    values, labels = embeddings()
    fitted = metrics.ClassStatistics.fit(values, labels, n_classes=3)
    ours = metrics.mahalanobis_distance(values, labels, fitted)
    for i in range(6):
        inverse = np.linalg.inv(fitted.covariances[labels[i]].numpy())
        theirs = mahalanobis(values[i].double().numpy(), fitted.centroids[labels[i]].numpy(), inverse)
        assert ours[i].item() == pytest.approx(theirs)


def test_content_variance_by_hand() -> None:
    """Unit covariance at the origin: |5 - mean(5, 10)| = 2.5 for (3, 4) and its double."""
    unit = metrics.ClassStatistics(torch.zeros(1, 2), torch.eye(2)[None])
    sample = torch.tensor([[3.0, 4.0]])
    variants = torch.stack([sample, 2 * sample])
    assert metrics.content_variance(sample, variants, torch.tensor([0]), unit).tolist() == pytest.approx(
        [2.5]
    )


def test_a_rotation_about_the_centroid_keeps_the_content() -> None:
    """ContentVariance sees only the distance to the centroid, as the paper defines it."""
    unit = metrics.ClassStatistics(torch.zeros(1, 2), torch.eye(2)[None])
    sample = torch.tensor([[3.0, 4.0]])
    rotated = torch.tensor([[[-4.0, 3.0]]])
    assert metrics.content_variance(sample, rotated, torch.tensor([0]), unit).item() == pytest.approx(0.0)


def test_style_variance_by_hand() -> None:
    """One channel of two pixels: Gram 5/2 against 20/2, squared difference 56.25; identity is 0."""
    features = torch.tensor([[[[1.0, 2.0]]]])
    variants = torch.stack([2 * features, features])
    assert metrics.style_variance(features, variants[:1]).tolist() == [56.25]
    assert metrics.style_variance(features, variants).tolist() == [56.25 / 2]


def test_gram_matrix_is_the_scaled_inner_product_of_channels() -> None:
    """Two channels of two positions, divided by 2 * 2."""
    gram = metrics.gram_matrix(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert gram.tolist() == [[5 / 4, 11 / 4], [11 / 4, 25 / 4]]


def test_a_singular_covariance_asks_for_shrinkage() -> None:
    """Fewer samples than dimensions and no shrinkage cannot be inverted."""
    values, labels = torch.eye(4)[:2], torch.tensor([0, 0])
    plain = metrics.ClassStatistics.fit(values, labels, n_classes=1, shrinkage=0.0)
    with pytest.raises(InputError, match="shrinkage"):
        metrics.mahalanobis_distance(values, labels, plain)


def test_wrong_shapes_and_missing_classes_are_refused() -> None:
    """Each error names the argument."""
    values, labels = embeddings()
    with pytest.raises(InputError, match="class 3"):
        metrics.ClassStatistics.fit(values, labels, n_classes=4)
    with pytest.raises(InputError, match="covariances"):
        metrics.ClassStatistics(torch.zeros(2, 3), torch.zeros(2, 2, 2))
    fitted = metrics.ClassStatistics.fit(values, labels, n_classes=3)
    with pytest.raises(InputError, match="variants"):
        metrics.content_variance(values, values, labels, fitted)
    with pytest.raises(InputError, match="variants"):
        metrics.style_variance(torch.zeros(1, 2, 3, 3), torch.zeros(1, 2, 3, 3))
