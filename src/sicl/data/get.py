"""Get a data set: the official archives with their checksums; download, verify, unpack."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sicl.data.download import Progress, download, unpack, wrong_checksum
from sicl.data.files import data_root, embedded
from sicl.data.load import DATASETS
from sicl.errors import DataError, OptionError, nearest, require_choice


@dataclass(frozen=True)
class Archive:
    """One file to download.

    Args:
        url: where it is published.
        md5: as its publisher lists it: it tells damage.
        n_bytes: its size, where known.
        creates: the path under the data root that it becomes; an archive is unpacked into the folder of that.
        unpack: False for a file that is kept as it is.
        sha256: of the same file, where it is known: it tells forgery (SVHN is published without https).
    """

    url: str
    md5: str
    creates: str
    n_bytes: int | None = None
    unpack: bool = True
    sha256: str = ""

    @property
    def filename(self) -> str:
        """The last part of the address."""
        return self.url.rsplit("/", 1)[1].partition("?")[0]


ARCHIVES: dict[str, dict[str, Archive]] = {
    name: {part: Archive(**entry) for part, entry in parts.items()}
    for name, parts in embedded("sicl.data", "archives.json").items()
}
"""The archives of each data set, by part."""


def get_dataset(
    name: str,
    root: str | os.PathLike[str] | None = None,
    *,
    parts: Sequence[str] = (),
    mirror: str | None = None,
    archive: Path | None = None,
    keep: bool = False,
    progress: Callable[[str], Progress] | None = None,
    **tries: float,
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
        tries: `retries` and `wait`, as of `download`.
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
            file = archive or _download(entry, folder, mirror, progress, tries)
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
    tries: Mapping[str, Any],
) -> Path:
    url = f"{mirror.rstrip('/')}/{entry.filename}" if mirror else entry.url
    follow = progress(entry.filename) if progress is not None else None
    path = folder / "downloads" / entry.filename
    if path.is_file() and not wrong_checksum(path, entry.md5, entry.sha256):
        return path
    return download(url, path, md5=entry.md5, sha256=entry.sha256, progress=follow, **tries)


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
        unpack(file, target.parent)
        if not target.exists():
            raise DataError(
                f"`{file}` was unpacked but has no `{entry.creates}`; it is not the published archive."
            )
    if not keep:
        file.unlink()
