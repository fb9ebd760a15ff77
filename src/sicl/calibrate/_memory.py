"""Remember the last rows or confidences seen: what a small batch cannot tell by itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sicl.errors import InputError, shown
from sicl.states import require_state
from sicl.types import Prediction

STREAM = 1024
"""How many confidences a risk is judged by: enough for a bound, few enough to follow a stream that changes."""


class Recent:
    """The last `capacity` rows added, oldest first (a batch larger than that is kept whole).

    Args:
        capacity: how many rows to keep.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._rows: Tensor | None = None

    def add(self, rows: Tensor) -> None:
        """Append rows, dropping the oldest beyond the capacity."""
        self._rows = self.followed_by(rows)

    def followed_by(self, rows: Tensor) -> Tensor:
        """Return what would be remembered if these rows were added."""
        if self._rows is not None and self._rows.shape[1:] != rows.shape[1:]:
            raise InputError(
                f"Remembered are rows of {tuple(self._rows.shape[1:])}, this batch has {tuple(rows.shape[1:])}: the "
                "state is of another network or image size; `reset()` forgets it."
            )
        kept = rows if self._rows is None else torch.cat([self._rows, rows])
        return kept[-max(self.capacity, len(rows)) :].detach()

    def values(self) -> Tensor:
        """Return the rows; at least one batch must have been added."""
        if self._rows is None:
            raise RuntimeError("nothing has been added yet")
        return self._rows

    def clear(self) -> None:
        """Forget everything."""
        self._rows = None

    def state_dict(self) -> dict[str, Any]:
        """Return the rows."""
        return {"rows": self._rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over rows that `state_dict` gave."""
        rows = state["rows"]
        if rows is not None and (not isinstance(rows, Tensor) or rows.ndim == 0):
            raise InputError(f"`rows` of the state must be a tensor with rows, got {shown(rows)}.")
        self._rows = rows


class Confidences:
    """The last confidences of a stream (a larger batch's are kept whole), for `Prediction.accept(risk=...)`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget them."""
        self._confidence = torch.empty(0)

    def joined(self, out: Prediction) -> Prediction:
        """Take in a batch; return its prediction with the stream's confidences up to it."""
        known = torch.cat([self._confidence.to(out.confidence.device), out.confidence])
        self._confidence = known[-max(STREAM, len(out)) :]
        return replace(out, recent=self._confidence)

    def state_dict(self) -> dict[str, Any]:
        """Return the confidences."""
        return {"confidence": self._confidence}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a copy of a state that `state_dict` gave.

        Raises:
            InputError: it is none, or holds NaN; nothing has changed then.
        """
        require_state(state, {"confidence": torch.empty(0)}, whose="recent confidences")
        self._confidence = state["confidence"].clone()
