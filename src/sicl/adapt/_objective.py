"""What the entropy methods minimise, sample by sample: the softmax's entropy, or that of COME's opinion."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Objective = Literal["entropy", "come", "come-1000"]
"""The softmax's entropy; COME's; COME's as its authors' code has it, with K = 1000 whatever the network says."""


def uncertainty_of(logits: Tensor, objective: Objective) -> Tensor:
    """Return what `objective` minimises, for each row of the logits."""
    if objective == "entropy":
        return entropy(logits)
    return opinion_entropy(logits, n_classes=1000 if objective == "come-1000" else None)


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy (nats) of each row's softmax, computed in float32 from log-probabilities."""
    log_probabilities = logits.float().log_softmax(dim=1)
    return -(log_probabilities.exp() * log_probabilities).sum(dim=1)


def opinion_entropy(logits: Tensor, *, n_classes: int | None = None) -> Tensor:
    """Return the entropy of each row's subjective opinion (Zhang et al., 2025), in float32.

    With evidence exp(z) and S = sum exp(z) + K the opinion has a belief exp(z_k) / S in each class and an
    uncertainty K / S. The norm of z is held: its value stays, the gradient along z goes.

    Args:
        logits: N x C.
        n_classes: K; None is C.
    """
    z = logits.float()
    norm = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    z = z / norm.clamp_min(1e-12) * norm.detach()
    ignorance = z.new_full((len(z), 1), math.log(n_classes or z.shape[1]))
    # exp(z) / (sum exp(z) + K) is a softmax with ln K as one more logit, which cannot overflow.
    masses = torch.cat([z, ignorance], dim=1).softmax(dim=1) + 1e-7
    return -(masses * masses.log()).sum(dim=1)
