"""What the company is normalised with: kept, so that a few images can be asked as if they came with many."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sicl.engine.norms import Recorded, batch_norms, statistics_of

CLEAN = "clean"


class Kept:
    """The statistics of the company in one network's batch norms: as it is, and under each view of it.

    A large batch that is mirrored, cropped or given other styles is normalised by its own statistics each time, so
    the company's are kept apart by view too. Between two meetings a single image costs no more than its own passes.

    Args:
        network: whose batch norms.
        by_view: whether each view has statistics of its own.
    """

    def __init__(self, network: nn.Module, *, by_view: bool = True) -> None:
        self._norms, self.by_view = batch_norms(network), by_view
        self._seen: dict[str, Recorded] = {}

    def reset(self) -> None:
        """Forget the statistics."""
        self._seen = {}

    def __len__(self) -> int:
        return len(self._seen)

    def take(self, seen: dict[str, Recorded]) -> None:
        """Keep what was seen of each view; layers with running statistics go on using those."""
        self._seen = {
            view: {n: recorded[n] for n in self._norms if n in recorded and statistics_of(n) == "batch"}
            for view, recorded in seen.items()
        }

    def of(self, view: str = CLEAN) -> Recorded:
        """Return the statistics of a view; those of the company as it is if the view has none of its own."""
        return self._seen.get(view, self._seen[CLEAN])

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics, by the number of the layer."""
        numbers = {norm: number for number, norm in enumerate(self._norms)}
        return {
            view: {numbers[norm]: pair for norm, pair in recorded.items() if norm in numbers}
            for view, recorded in self._seen.items()
        }

    def load_state_dict(self, state: dict[str, dict[int, tuple[Tensor, Tensor]]]) -> None:
        """Take over a state that `state_dict` gave."""
        self._seen = {
            view: {self._norms[number]: _fitting(pair, self._norms[number]) for number, pair in seen.items()}
            for view, seen in state.items()
        }


def _fitting(pair: tuple[Tensor, Tensor], norm: _BatchNorm) -> tuple[Tensor, Tensor]:
    """Return a mean and a variance that have as many channels as the layer; anything else raises."""
    mean, variance = pair
    return mean.view(norm.num_features), variance.view(norm.num_features)
