"""Get a data set: download, verify, unpack."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from sicl.data.archives import ARCHIVES, Archive
from sicl.data.download import Progress, download, wrong_checksum
from sicl.data.load import DATASETS
from sicl.data.roots import data_root
from sicl.data.unpack import unpack
from sicl.errors import DataError, OptionError, nearest, require_choice


def get_dataset(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    parts: Sequence[str] = (),
    mirror: str | None = None,
    archive: Path | None = None,
    keep: bool = False,
    progress: Callable[[str], Progress] | None = None,
    retries: int = 8,
    wait: float = 1.0,
) -> list[Path]:
    """Download and unpack a data set's official archives into the data root; what is there already stays.

    Args:
        name: one of `ARCHIVES`.
        root: the data root (None: SICL_DATA or ~/.cache/sicl).
        parts: which archives; none means all (ImageNet-C has noise, blur, weather, digital, extra).
        mirror: a server or folder address that has files of the same names.
        archive: a local copy to verify and unpack instead of downloading.
        keep: keep the downloaded archive after unpacking.
        progress: makes the callback that follows one file's download.
        retries: how many tries without a byte end a download.
        wait: seconds to wait after the first such try; each further one waits longer.
    """
    chosen = _chosen(name, parts)
    if archive is not None and len(chosen) != 1:
        raise OptionError(
            f"`archive` is one file, but {name} has {', '.join(ARCHIVES[name])}; name one part."
        )
    folder = data_root(root)
    created = []
    for entry in chosen:
        target = folder / entry.creates
        if not target.exists():
            file = archive or _download(entry, folder, mirror, progress, retries, wait)
            _install(entry, file, folder, keep=keep or archive is not None)
        created.append(target)
    return created


def _chosen(name: str, parts: Sequence[str]) -> list[Archive]:
    if name.partition(":")[0] == "imagenet":
        raise OptionError(
            "ImageNet cannot be downloaded without an account at image-net.org; unpack it yourself "
            "to `imagenet/val/<class>/` and `imagenet/train/<class>/` in the data folder."
        )
    if name in ("demo", "noise"):
        raise OptionError(f"{name!r} needs no download: it is part of the package.")
    if name not in ARCHIVES:
        raise OptionError(
            f"unknown data set {name!r}; there are archives of {', '.join(ARCHIVES)}."
            f"{nearest(name, DATASETS)}"
        )
    for part in parts:
        require_choice(ARCHIVES[name], part=part)
    return [entry for part, entry in ARCHIVES[name].items() if not parts or part in parts]


def _download(
    entry: Archive,
    folder: Path,
    mirror: str | None,
    progress: Callable[[str], Progress] | None,
    retries: int,
    wait: float,
) -> Path:
    url = f"{mirror.rstrip('/')}/{entry.filename}" if mirror else entry.url
    follow = progress(entry.filename) if progress is not None else None
    path = folder / "downloads" / entry.filename
    if path.is_file() and not wrong_checksum(path, entry.md5, entry.sha256):
        return path
    return download(
        url, path, md5=entry.md5, sha256=entry.sha256, progress=follow, retries=retries, wait=wait
    )


def _install(entry: Archive, file: Path, folder: Path, *, keep: bool) -> None:
    if not file.is_file():
        raise DataError(f"`{file}` is missing; give `--archive` an existing file.")
    if wrong := wrong_checksum(file, entry.md5, entry.sha256):
        raise DataError(f"`{file}` has {wrong}: it is another file than {entry.filename}.")
    target = folder / entry.creates
    if not entry.unpack:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        shutil.copyfile(file, part)
        part.replace(target)
    else:
        unpack(file, folder / entry.folder)
        if not target.exists():
            raise DataError(
                f"`{file}` was unpacked but has no `{entry.creates}`; it is not the published archive."
            )
    if not keep:
        file.unlink()
