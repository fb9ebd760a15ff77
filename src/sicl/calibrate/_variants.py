"""Send many variants of a batch through the rest of a network and count how often the label survives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from sicl.calibrate._base import predicted_probability
from sicl.models.split import Split

Make = Callable[[int], Tensor]
"""Makes the next `n` variants of the batch, stacked variant after variant."""


@dataclass(frozen=True)
class Votes:
    """What V variants say about N predicted labels.

    Args:
        hard: V x N, 1 where the variant's predicted class is the label, else 0.
        soft: V x N, the variant's probability of the label.
    """

    hard: Tensor
    soft: Tensor

    def share(self, kind: Literal["hard", "soft"]) -> Tensor:
        """Return each sample's mean vote."""
        return (self.hard if kind == "hard" else self.soft).mean(dim=0)


def collect_votes(
    split: Split,
    make: Make,
    labels: Tensor,
    *,
    variants: int,
    norm: Literal["frozen", "batch"],
    max_batch: int,
) -> Votes:
    """Resume `variants` variants in chunks of at most `max_batch` rows (at least one variant a chunk)."""
    rows = len(labels)
    per_chunk = max(1, max_batch // rows)
    hard, soft = [], []
    for start in range(0, variants, per_chunk):
        n = min(per_chunk, variants - start)
        logits = split.resume(make(n), norm=norm, groups=n).view(n, rows, -1)
        hard.append((logits.argmax(dim=-1) == labels).float())
        soft.append(predicted_probability(logits, labels.expand(n, rows)))
    return Votes(torch.cat(hard), torch.cat(soft))
