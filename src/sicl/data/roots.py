"""Where data live: an argument, the environment, or the user's cache."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sicl.errors import require_path

ENVIRONMENT = "SICL_DATA"


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return `root`, else the folder the variable SICL_DATA names, else ~/.cache/sicl."""
    chosen = root if root is not None else os.environ.get(ENVIRONMENT) or "~/.cache/sicl"
    require_path(root=chosen)
    return Path(os.path.expanduser(chosen))


def candidates(root: Path, names: Iterable[str]) -> list[Path]:
    """Return the folders under `root` that may hold a data set: the named ones, then `root` itself."""
    return [folder for folder in (*(root / name for name in names), root) if folder.is_dir()]
