"""LAME: adjust the outputs of a batch to each other, and leave the network alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sicl.adapt._base import Adapter, Method
from sicl.adapt.source import SourceAdapter
from sicl.engine.head import find_head, penultimate
from sicl.errors import require_positive
from sicl.types import SourceData

Affinity = Literal["rbf", "knn", "linear"]


@dataclass(frozen=True, kw_only=True)
class Lame(Method):
    """Let images with like features agree on their classes (Boudiaf et al., 2022).

    Minimises sum_i KL(y_i || p_i) - 1/2 sum_ij w_ij y_i y_j over the batch's soft labels y by the fixed point
    y <- softmax(ln p + W y). The network keeps its source statistics and never moves; the logits are ln y.
    Made for streams in which neighbours in time share a class; on shuffled ones it harms.

    Args:
        affinity: W from the features that enter the head, normalised: "rbf" exp(-d^2 / 2 sigma^2) with sigma
            the mean distance to the k-th nearest (itself counted); "knn" 1 for the k nearest; "linear" cosine.
        neighbours: k.
        iterations: of the fixed point, at most; it ends when the energy moves by 1e-8 of itself or less.

    Raises:
        OptionError: a value is out of range.
        UnsupportedModelError: the model calls no linear layer, so its head is not clear (on the first batch).

    Differs from the reference implementation:
        - it gives ln y as logits (the reference: y, so that a softmax of it means nothing);
        - a batch of one stays as it is (the reference divides zero by zero, or with "linear" sharpens it).
    """

    affinity: Affinity = "rbf"
    neighbours: int = 5
    iterations: int = 100

    def __post_init__(self) -> None:
        require_positive(neighbours=self.neighbours, iterations=self.iterations)

    def adapter(self, network: nn.Module, *, source: SourceData | None = None) -> Adapter:
        return LameAdapter(self, network)


class LameAdapter(SourceAdapter):
    """A network that stays as it is, and outputs that are adjusted to each other."""

    spec: Lame

    def __init__(self, spec: Lame, network: nn.Module) -> None:
        super().__init__(spec, network)
        self.head: str | None = None

    def forward(self, images: Tensor) -> Tensor:
        """Return the logarithms of the batch's adjusted probabilities."""
        if self.head is None:
            self.head = find_head(self.network, images)
        features, logits = penultimate(self.network, self.head, images)
        unary = torch.log(logits.float().softmax(dim=1) + 1e-10)
        return adjusted(unary, self._affinity(features), self.spec.iterations)

    def _affinity(self, features: Tensor) -> Tensor:
        features = F.normalize(features.float(), dim=1)
        n = len(features)
        if n == 1:
            return features.new_zeros(1, 1)
        if self.spec.affinity == "linear":
            return features @ features.T
        # Not by a matrix product, which loses the digits of small distances.
        distances = torch.cdist(features, features, compute_mode="donot_use_mm_for_euclid_dist")
        if self.spec.affinity == "rbf":
            nearest = distances.topk(min(self.spec.neighbours, n), dim=1, largest=False).values
            return torch.exp(-distances.square() / (2 * nearest[:, -1].mean().square()).clamp_min(1e-12))
        near = distances.topk(min(self.spec.neighbours + 1, n), dim=1, largest=False).indices[:, 1:]
        return torch.zeros_like(distances).scatter_(1, near, 1.0)


def adjusted(unary: Tensor, affinity: Tensor, iterations: int) -> Tensor:
    """Return ln y after iterating y <- softmax(unary + affinity y) from y = softmax(unary)."""
    out = unary.log_softmax(dim=1)
    before = float("inf")
    for i in range(iterations):
        pull = affinity @ out.exp()
        out = (unary + pull).log_softmax(dim=1)
        # As in the reference the energy joins the new y to the pull of the old one.
        energy = float((out.exp() * (out - unary - pull)).sum())
        if i > 1 and abs(energy - before) <= 1e-8 * abs(before):
            break
        before = energy
    return out
