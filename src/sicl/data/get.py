"""Get a data set: the official archives with their checksums; download, verify, unpack."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sicl.data.download import Progress, download, wrong_checksum
from sicl.data.files import data_root
from sicl.data.load import DATASETS
from sicl.data.unpack import unpack
from sicl.errors import DataError, OptionError, nearest, require_choice

_ZENODO = "https://zenodo.org/records"
_KRIZ = "https://www.cs.toronto.edu/~kriz"
_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist"
_SVHN = "http://ufldl.stanford.edu/housenumbers"


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


def _imagenet_c(part: str, md5: str, n_bytes: int | None, creates: str) -> Archive:
    url = f"{_ZENODO}/2235448/files/{part}.tar?download=1"
    return Archive(url, md5, f"ImageNet-C/{creates}", n_bytes)


def _mnist(name: str, md5: str, sha256: str) -> Archive:
    return Archive(f"{_MNIST}/{name}.gz", md5, f"mnist/{name}.gz", unpack=False, sha256=sha256)


ARCHIVES: dict[str, dict[str, Archive]] = {
    "cifar10": {
        "all": Archive(
            f"{_KRIZ}/cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            "cifar-10-batches-py",
            170_498_071,
            sha256="6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
        )
    },
    "cifar100": {
        "all": Archive(
            f"{_KRIZ}/cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            "cifar-100-python",
            169_001_437,
            sha256="85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
        )
    },
    "cifar10-c": {
        "all": Archive(
            f"{_ZENODO}/2535967/files/CIFAR-10-C.tar?download=1",
            "56bf5dcef84df0e2308c6dcbcbbd8499",
            "CIFAR-10-C",
            2_918_471_680,
            sha256="c72763e101c723b7c507b96205f7e938912a5d587376173b825850cf3cb876a7",
        )
    },
    "cifar100-c": {
        "all": Archive(
            f"{_ZENODO}/3555552/files/CIFAR-100-C.tar?download=1",
            "11f0ed0f1191edbf9fa23466ae6021d3",
            "CIFAR-100-C",
            2_918_473_216,
            sha256="30ee6543a1bfd049fa33834b7c1ada301e7064b7fbe8fc38340eb8b62ced4b33",
        )
    },
    "imagenet-c": {
        "noise": _imagenet_c("noise", "e80562d7f6c3f8834afb1ecf27252745", None, "gaussian_noise"),
        "blur": _imagenet_c("blur", "2d8e81fdd8e07fef67b9334fa635e45c", 7_112_704_951, "defocus_blur"),
        "weather": _imagenet_c("weather", "33ffea4db4d93fe4a428c40a6ce0c25d", 12_797_438_995, "snow"),
        "digital": _imagenet_c("digital", "89157860d7b10d5797849337ca2e5c03", 7_757_510_705, "contrast"),
        "extra": _imagenet_c("extra", "d492dfba5fc162d8ec2c3cd8ee672984", 15_789_490_144, "saturate"),
    },
    "mnist": {
        "test-images": _mnist(
            "t10k-images-idx3-ubyte",
            "9fb629c4189551a2d022fa330f9573f3",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        ),
        "test-labels": _mnist(
            "t10k-labels-idx1-ubyte",
            "ec29112dd5afa0611ce80d1b7f02629c",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
        "train-images": _mnist(
            "train-images-idx3-ubyte",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        ),
        "train-labels": _mnist(
            "train-labels-idx1-ubyte",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        ),
    },
    "svhn": {
        "test": Archive(
            f"{_SVHN}/test_32x32.mat",
            "eb5a983be6a315427106f1b164d9cef3",
            "svhn/test_32x32.mat",
            64_275_384,
            unpack=False,
            sha256="cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
        )
    },
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
