"""The unadapted source model: the reference that adaptation has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from sicl.adapt._base import Adapter, Method
from sicl.types import SourceData


@dataclass(frozen=True, kw_only=True)
class Source(Method):
    """No adaptation: the model as it was trained, with its running statistics."""

    def adapter(self, network: nn.Module, *, source: SourceData | None = None) -> Adapter:
        return SourceAdapter(self, network)


class SourceAdapter(Adapter):
    """A network that stays as it is."""

    writes: ClassVar[Literal["none", "counted", "any"]] = "none"

    def moving(self) -> list[Tensor]:
        """Return nothing."""
        return []

    def update(self, images: Tensor, logits: Tensor | None) -> None:
        """Do nothing."""
