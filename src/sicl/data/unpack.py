"""Unpack an archive so that it is either whole or not there, and never outside its folder."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import zlib
from pathlib import Path, PurePosixPath

from sicl.data.files import MOST_BYTES
from sicl.errors import DataError, reason

MOST_EXPANSION = 100
"""How many times its own size an archive above 10 MB may unpack to (smaller ones: 1 GiB)."""


def unpack(archive: Path, folder: Path) -> list[Path]:
    """Unpack a tar archive's top-level entries into `folder`; return where they are.

    Everything goes to a temporary folder beside it first and is renamed when complete.

    Raises:
        DataError: the archive is damaged, or an entry is a link, a device or would leave the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as temporary:
        place = Path(temporary)
        try:
            with tarfile.open(archive) as tar:
                left = max(MOST_BYTES, MOST_EXPANSION * archive.stat().st_size)
                for member in tar:
                    left -= member.size
                    if left < 0:
                        raise DataError(
                            f"`{archive}` unpacks to more than {MOST_EXPANSION} times its size; it is not unpacked."
                        )
                    _extract(tar, member, place, archive)
        except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
            raise DataError(
                f"`{archive}` is damaged or truncated ({reason(error)}); get it again."
            ) from error
        return [_move(entry, folder / entry.name) for entry in sorted(place.iterdir())]


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path, archive: Path) -> None:
    path = PurePosixPath(member.name)
    if (
        path.is_absolute()
        or ".." in path.parts
        or "\\" in member.name
        or not (member.isfile() or member.isdir())
    ):
        raise DataError(
            f"`{archive}` has the entry {member.name!r}, a link, device or path outside its folder; it is not unpacked."
        )
    target = place / path
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    source = tar.extractfile(member)
    if source is None:
        raise DataError(f"`{archive}` has the entry {member.name!r}, which cannot be read.")
    with source, target.open("wb") as file:
        shutil.copyfileobj(source, file, 1 << 20)
    if target.stat().st_size != member.size:
        raise DataError(f"`{archive}` is truncated in {member.name!r}; get it again.")


def _move(entry: Path, target: Path) -> Path:
    """Put an unpacked entry into place; an older one of that name is swapped out, never mixed with the new."""
    if target.exists():
        old = target.with_name(f".old-{os.getpid()}-{target.name}")
        target.replace(old)
        entry.replace(target)
        if old.is_dir():
            shutil.rmtree(old)
        else:
            old.unlink()
        return target
    entry.replace(target)
    return target
