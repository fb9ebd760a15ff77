"""Download a file with resume and checksum, and unpack it: whole or not there, and never outside its folder."""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias

from sicl.data.files import MOST_BYTES
from sicl.errors import DataError, reason

Progress: TypeAlias = Callable[[int, int | None], None]
"""Called with the bytes done and, where known, the bytes in all."""

_BLOCK = 1 << 18


def download(
    url: str,
    path: Path,
    *,
    md5: str,
    sha256: str = "",
    progress: Progress | None = None,
    retries: int = 8,
    wait: float = 1.0,
    timeout: float = 60.0,
) -> Path:
    """Fetch `url` to `path`, going on from `path` + ".part" if an earlier run left one.

    The file appears under its name only when its checksum is right. A try that brought bytes does not count as a
    failed one; `retries` tries in a row without any end the download, and the part stays for the next run.

    Raises:
        DataError: the server refuses, the connection keeps failing, or the content is not what was published.
    """
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    failures = 0
    while True:
        before = _size(part)
        fault = _attempt(url, part, progress, timeout)
        if fault is None:
            break
        failures = 0 if _size(part) > before else failures + 1
        if failures >= retries:
            raise DataError(
                f"`{url}` could not be downloaded after {retries} tries ({fault}); {_size(part):,} bytes are kept in "
                f"`{part}`: run the same command again to go on."
            )
        time.sleep(wait * failures)
    if wrong := wrong_checksum(part, md5, sha256):
        part.unlink()  # going on from a wrong file cannot end well
        raise DataError(
            f"`{url}` gave a file with {wrong}; the file was dropped, try again or give a copy you trust with "
            "`--archive FILE`."
        )
    part.replace(path)
    return path


def _attempt(url: str, part: Path, progress: Progress | None, timeout: float) -> str | None:
    """Try to fetch the rest; return None when the file is whole, else why it is not."""
    try:
        total = _fetch(url, part, progress, timeout)
    except urllib.error.HTTPError as error:
        if error.code < 500 and error.code != 429:
            raise DataError(
                f"`{url}` answered {error.code} {error.reason}; give another server with `--mirror URL` or a local "
                "copy with `--archive FILE`."
            ) from error
        return f"the server answered {error.code} {error.reason}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    if total is not None and _size(part) != total:
        return f"the connection closed after {_size(part):,} of {total:,} bytes"
    return None


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _fetch(url: str, part: Path, progress: Progress | None, timeout: float) -> int | None:
    """Fetch the rest of a file; return the whole size, if the server says it."""
    start = _size(part)
    # Without "identity" a server may compress, and byte positions would mean nothing.
    headers = {"User-Agent": "sicl", "Accept-Encoding": "identity"} | (
        {"Range": f"bytes={start}-"} if start else {}
    )
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        error.close()
        return _after_unsatisfiable_range(error.headers.get("Content-Range"), part, start)
    with response:
        resumed = response.status == 206 and start > 0
        done = start if resumed else 0
        total = _total(response, done)
        with part.open("ab" if resumed else "wb") as file:
            while block := response.read(_BLOCK):
                file.write(block)
                done += len(block)
                if progress is not None:
                    progress(done, total)
    return total


def _after_unsatisfiable_range(content_range: str | None, part: Path, start: int) -> int | None:
    """Decide what "no such range" means: the part is whole already, or longer than the file."""
    total = int(content_range.rpartition("/")[2]) if content_range and content_range[-1].isdigit() else start
    if total != start:
        part.unlink()
        raise OSError(f"the part was longer than the file ({start:,} > {total:,} bytes) and was dropped")
    return total


def _total(response: Any, done: int) -> int | None:
    length = response.headers.get("Content-Length")
    return done + int(length) if length is not None and length.isdigit() else None


def wrong_checksum(path: Path, md5: str, sha256: str = "") -> str:
    """Return an empty string if a file is the published one, else how it differs.

    Args:
        path: the file.
        md5: as publishers list it: it tells damage, not forgery.
        sha256: tells forgery too; empty where it is not known.
    """
    digests = (hashlib.md5(usedforsecurity=False), hashlib.sha256())
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            for digest in digests:
                digest.update(block)
    for name, digest, published in zip(("MD5", "SHA-256"), digests, (md5, sha256)):
        if published and digest.hexdigest() != published:
            return f"{name} {digest.hexdigest()}, the published one has {published}"
    return ""


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
    old = target.with_name(f".old-{os.getpid()}-{target.name}")
    if target.exists():
        target.replace(old)
    entry.replace(target)
    if old.is_dir():
        shutil.rmtree(old)
    old.unlink(missing_ok=True)
    return target
