"""Writing files so that a killed run leaves either the old file or the new one, never half of it."""

from __future__ import annotations

import os
from pathlib import Path

from sicl.data.npy import sync_folder


def write_atomic(path: str | os.PathLike[str], content: str | bytes) -> Path:
    """Write `content` aside as `NAME.PID.part`, then rename it over `path`; returns the path.

    Text is UTF-8 with unchanged newlines; half a character becomes its number. Missing parent folders are
    made. After an exception the part file is gone and `path` is what it was.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, target)
        sync_folder(target.parent)
    finally:
        part.unlink(missing_ok=True)
    return target
