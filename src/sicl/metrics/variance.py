"""ContentVariance and StyleVariance: how far variants of a feature move its content and its style."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sicl.errors import InputError, require_between, require_count
from sicl.metrics._checked import class_indices, finite_result, numbers


@dataclass(frozen=True, slots=True)
class ClassStatistics:
    """The centroid and covariance of every class in embedding space.

    Args:
        centroids: C x D.
        covariances: C x D x D, symmetric and positive definite.
    """

    centroids: Tensor
    covariances: Tensor

    def __post_init__(self) -> None:
        classes, size = numbers("centroids", self.centroids, ndim=2).shape
        numbers("covariances", self.covariances, ndim=3)
        if self.covariances.shape != (classes, size, size):
            raise InputError(
                f"`covariances` must be {classes} x {size} x {size} to go with the centroids, "
                f"got {tuple(self.covariances.shape)}."
            )

    @classmethod
    def fit(
        cls, embeddings: Tensor, labels: Tensor, *, n_classes: int, shrinkage: float = 0.1
    ) -> ClassStatistics:
        """Estimate them from labelled embeddings (N x D).

        The paper does not say how it inverts a covariance that has more dimensions than samples. Here
        Sigma_c = (1 - s) S_c + s (tr S_c / D) I, with S_c the maximum-likelihood covariance of class c
        and s = `shrinkage`; s = 0 is the plain estimate and needs more than D samples a class.

        Raises:
            InputError: a class with no samples, or a covariance that stays singular.
        """
        require_between(0.0, 1.0, shrinkage=shrinkage)
        require_count(n_classes=n_classes)
        values = numbers("embeddings", embeddings, ndim=2)
        labels = class_indices("labels", labels, len(values), n_classes).to(values.device)
        eye = torch.eye(values.shape[1], dtype=values.dtype, device=values.device)
        centroids, covariances = [], []
        for label in range(n_classes):
            members = values[labels == label]
            if len(members) == 0:
                raise InputError(
                    f"`ClassStatistics.fit` needs samples of every class, got none of class {label}."
                )
            centre = members.mean(0)
            scatter = (members - centre).T @ (members - centre) / len(members)
            centroids.append(centre)
            covariances.append((1 - shrinkage) * scatter + shrinkage * scatter.diagonal().mean() * eye)
        return cls(torch.stack(centroids), finite_result("embeddings", torch.stack(covariances)))


def mahalanobis_distance(embeddings: Tensor, labels: Tensor, statistics: ClassStatistics) -> Tensor:
    """Return the distance of every embedding (... x N x D) to the centroid of its class (N labels)."""
    centroids = statistics.centroids.double()
    values = numbers("embeddings", embeddings)
    if values.ndim < 2 or values.shape[-1] != centroids.shape[1]:
        raise InputError(
            f"`embeddings` must be ... x N x {centroids.shape[1]}, as the statistics, got {tuple(values.shape)}."
        )
    labels = class_indices("labels", labels, values.shape[-2], len(centroids)).to(values.device)
    factor, info = torch.linalg.cholesky_ex(statistics.covariances.double())
    if bool((info > 0).any()):
        bad = int((info > 0).nonzero()[0])
        raise InputError(
            f"The covariance of class {bad} is singular. Fit with `shrinkage` > 0 or more samples."
        )
    offset = values - centroids[labels]
    # |L^-1 d| with Sigma = L L^T is the distance, without ever forming the inverse.
    white = torch.linalg.solve_triangular(factor[labels], offset.unsqueeze(-1), upper=False)
    distance: Tensor = torch.linalg.vector_norm(white.squeeze(-1), dim=-1)
    return finite_result("embeddings", distance)


def content_variance(
    embeddings: Tensor, variants: Tensor, labels: Tensor, statistics: ClassStatistics
) -> Tensor:
    """Return N times |D_M(z) - mean over variants of D_M(z')|: small where variants keep the content.

    Args:
        embeddings: N x D, the unperturbed embeddings.
        variants: V x N x D, V variants of each.
        labels: N class indices (the paper: each sample's own class).
        statistics: centroid and covariance of the classes.
    """
    embeddings, variants = numbers("embeddings", embeddings, ndim=2), numbers("variants", variants, ndim=3)
    if len(variants) == 0 or variants.shape[1:] != embeddings.shape:
        raise InputError(
            f"`variants` must be V x {' x '.join(map(str, embeddings.shape))}, got {tuple(variants.shape)}."
        )
    original = mahalanobis_distance(embeddings, labels, statistics)
    return (original - mahalanobis_distance(variants, labels, statistics).mean(0)).abs()


def gram_matrix(features: Tensor) -> Tensor:
    """Return ... x C x C: F F^T / (C L) of feature maps ... x C x L (Johnson et al., 2016)."""
    shape = numbers("features", features).shape
    if not isinstance(features, Tensor) or len(shape) < 2 or 0 in shape:
        raise InputError(f"`features` must be a tensor ... x C x L, got shape {tuple(shape)}.")
    channels, length = shape[-2:]
    return finite_result("features", features @ features.transpose(-1, -2) / (channels * length))


def style_variance(features: Tensor, variants: Tensor) -> Tensor:
    """Return N times the mean over variants of ||G(z) - G(z')||_F^2: large where variants move the style.

    Args:
        features: N x C x H x W feature maps (or N x C x L).
        variants: V x N x C x H x W, V variants of each.
    """
    features, variants = numbers("features", features), numbers("variants", variants)
    if features.ndim < 3 or variants.shape[:1] == (0,) or variants.shape[1:] != features.shape:
        raise InputError(
            "`features` must be N x C x H x W and `variants` V of them, got "
            f"{tuple(features.shape)} and {tuple(variants.shape)}."
        )
    original, moved = gram_matrix(features.flatten(2)), gram_matrix(variants.flatten(3))
    return finite_result("features", (moved - original).square().sum(dim=(-1, -2)).mean(0))
