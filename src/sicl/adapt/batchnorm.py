"""Test-batch statistics: the simplest adaptation, and the ground most others stand on."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from sicl.adapt._base import Adapter, Method
from sicl.adapt._parameters import use_batch_statistics
from sicl.adapt.source import SourceAdapter
from sicl.engine.norms import batch_norms
from sicl.errors import UnsupportedModelError
from sicl.types import SourceData


@dataclass(frozen=True, kw_only=True)
class BatchNorm(Method):
    """Normalise with the statistics of the test batch instead of the source's (Nado et al., 2020).

    Differs from the reference implementation: nothing known.

    Raises:
        UnsupportedModelError: the model has no batch norm.
    """

    def adapter(self, network: nn.Module, *, source: SourceData | None = None) -> Adapter:
        if not batch_norms(network):
            raise UnsupportedModelError(
                f"`BatchNorm` needs batch normalisation layers; {type(network).__name__} has none. "
                "Use `Source()` to calibrate without adapting."
            )
        use_batch_statistics(network)
        return SourceAdapter(self, network)
