"""Whose statistics normalise the variants: the network's running ones, or those of the batch at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sicl.calibrate.sicl.anchor import Attached
from sicl.calibrate.sicl.mixed import Mixed
from sicl.calibrate.sicl.questions import Engines
from sicl.calibrate.sicl.variants import SMALL_BATCH
from sicl.engine.engine import Engine
from sicl.engine.norms import batch_norms, is_plain, uses_batch_statistics

if TYPE_CHECKING:
    from sicl.calibrate.sicl.spec import SICL

LOST = 0.4
"""When so large a share of the predictions is lost to the batch's statistics, all variants use these."""
STEPS = 4
"""The share of the variants that use them comes in quarters."""


class Statistics:
    """Running statistics that lag behind the stream make a network, and its votes, too sure.

    Asked about a mirrored batch, the batch's own statistics confirm most of the classes that they gave it
    themselves. If they confirm fewer of those that the network predicted, its running statistics do not fit,
    and in proportion variants are normalised with the batch's.

    Args:
        spec: the configuration.
        attached: whose statistics may be replaced.
    """

    def __init__(self, spec: SICL, attached: Attached) -> None:
        self._spec, self._attached = spec, attached
        self._norms = batch_norms(attached.live)
        self._renewed: Engines | None = None
        self.mixed = Mixed(spec.seed)

    @property
    def may_be_replaced(self) -> bool:
        """Whether the network uses running statistics that the batch's own may stand in for."""
        spec = self._spec
        if spec.statistics != "auto" or spec.norm == "frozen" or "mirror" not in spec.members:
            return False
        return not all(map(uses_batch_statistics, self._norms)) and all(map(is_plain, self._norms))

    def in_question(self, labels: Tensor) -> bool:
        """Whether they may for this batch: not for a small one, nor for one of a stream sorted by class."""
        return self.may_be_replaced and len(labels) >= SMALL_BATCH and self.mixed.add(labels)

    @property
    def renewed(self) -> Engines:
        """What computes votes by the batch's own statistics."""
        if self._renewed is None:
            self._renewed = Engines.of(self._spec, self._attached, fresh=True)
        return self._renewed

    def fit(self, engine: Engine, mirrored: Tensor, labels: Tensor) -> Tensor:
        """Return how many of the labels the mirrored batch's logits confirm, of as many as they could.

        Args:
            engine: of the batch's statistics, with the batch begun.
            mirrored: its logits of the mirrored images.
            labels: the network's.
        """
        confirmed, own = mirrored.argmax(dim=1), engine.logits().argmax(dim=1)
        most = (confirmed == own).float().mean().clamp_min(1 / len(labels))
        return ((confirmed == labels).float().mean() / most).clamp_max(1.0)

    def share(self, fit: Tensor) -> float:
        """Return the share of the variants that use the batch's statistics."""
        return float(torch.round(STEPS * ((1 - fit) / LOST).clamp(0, 1)) / STEPS)
