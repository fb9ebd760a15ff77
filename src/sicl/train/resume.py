"""The file that a killed training run goes on from, written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from sicl.errors import DataError, OptionError

_FORMAT = 1


def write_resume(
    path: Path, key: str, state: dict[str, object], history: list[dict[str, float | None]]
) -> None:
    """Write the state after an epoch aside, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    torch.save({"format": _FORMAT, "key": key, "state": state, "history": history}, part)
    part.replace(path)


def read_resume(
    path: Path, key: str, device: torch.device
) -> tuple[dict[str, Any] | None, list[dict[str, float | None]]]:
    """Return state and history of a killed run, or nothing if there is none.

    Raises:
        DataError: the file is damaged.
        OptionError: the file is of a run with another spec or other data.
    """
    if not path.exists():
        return None, []
    try:
        saved = torch.load(path, map_location=device, weights_only=True)
        found, state, history = saved["key"], saved["state"], saved["history"]
    except Exception as error:  # a pickle is a program: a damaged one fails in any way
        raise DataError(f"The resume file {path.name!r} is damaged; delete it to start anew.") from error
    if found != key:
        raise OptionError(
            f"The resume file {path.name!r} is of a run with other options or data; repeat that run, or delete it."
        )
    return state, history
