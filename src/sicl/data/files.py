"""Files and folders: where data live, how much a packed file may hold, and writing a file whole or not at all."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

from sicl.errors import DataError, require_path

ENVIRONMENT = "SICL_DATA"
MOST_BYTES = 2**30
"""The most bytes that one packed file may hold (SVHN's largest has a quarter of it)."""


def embedded(room: str, name: str) -> Any:
    """Return what a JSON file of the package holds."""
    return json.loads(files(room).joinpath(name).read_text(encoding="utf-8"))


KNOWN: dict[str, dict[str, Any]] = embedded("sicl.data", "datasets.json")
"""The data sets by name: what they are, the folders they lie in, the sign of such a folder, CIFAR's batches."""


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return `root`, else the folder the variable SICL_DATA names, else ~/.cache/sicl."""
    chosen = root if root is not None else os.environ.get(ENVIRONMENT) or "~/.cache/sicl"
    require_path(root=chosen)
    return Path(os.path.expanduser(chosen))


def candidates(root: Path, dataset: str) -> list[Path]:
    """Return the folders under `root` that may hold a data set: those it usually lies in, then `root` itself."""
    named = (root / name for name in KNOWN[dataset]["folders"])
    return [folder for folder in (*named, root) if folder.is_dir()]


def require_size(path: Path, n_bytes: int) -> None:
    """Raise `DataError` if what a file holds is larger than `MOST_BYTES`."""
    if n_bytes > MOST_BYTES:
        raise DataError(
            f"`{path}` unpacks to more than {MOST_BYTES:,} bytes, which no known data set does; it is not read."
        )


@contextmanager
def written(path: Path) -> Iterator[IO[bytes]]:
    """Give a file to write aside, as `NAME.PID-THREAD.part`; it becomes `path` when the block ends well.

    After an exception the part is gone and `path` is what it was.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}-{threading.get_ident()}.part")
    try:
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)


def sync_folder(folder: str | os.PathLike[str]) -> None:
    """Bring a folder's names to the disk: a renamed file is safe only with its folder."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders.
        return
    try:
        os.fsync(descriptor)
    except OSError:  # Some network file systems cannot; then the rename has to do.
        pass
    finally:
        os.close(descriptor)


def write_atomic(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write `content` aside, then rename it over `path`; returns the path.

    Text is UTF-8 with unchanged newlines; half a character becomes its number. Missing parent folders are
    made. After an exception the part file is gone and `path` is what it was.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with written(target) as file:
        file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
    return target
