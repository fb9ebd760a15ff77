"""The entropy of predictions, once for all methods."""

from __future__ import annotations

from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy (nats) of each row's softmax, computed in float32 from log-probabilities."""
    log_probabilities = logits.float().log_softmax(dim=1)
    return -(log_probabilities.exp() * log_probabilities).sum(dim=1)
