"""Damaged data folders: an honest data set, or a sentence that names the file; never a crash or a full memory."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import Fuzzer, damaged, hostile
from PIL import Image
from scipy.io import savemat

from sicl.data import load_dataset
from sicl.data.check import check_dataset
from sicl.data.download import unpack
from sicl.data.sheets import write_sheet
from sicl.errors import shown

CASES, NAMES = 2100, 400
N = 20
CLASSES = [f"c{i}" for i in range(10)]


def _images(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (N, 8, 8, 3), np.uint8).repeat(4, 1).repeat(4, 2)


def _png(image: np.ndarray, form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, form)
    return file.getvalue()


def _idx(array: np.ndarray) -> bytes:
    return struct.pack(f">I{array.ndim}I", 2048 + array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def _batches(root: Path) -> None:
    content = {b"data": _images().transpose(0, 3, 1, 2).reshape(N, -1), b"labels": [i % 10 for i in range(N)]}
    (root / "cifar10").mkdir()
    (root / "cifar10" / "test_batch").write_bytes(pickle.dumps(content, 2))
    (root / "cifar10" / "batches.meta").write_bytes(pickle.dumps({b"label_names": CLASSES}, 2))


def _npz(root: Path) -> None:
    (root / "cifar10").mkdir()
    np.savez_compressed(root / "cifar10" / "cifar10.npz", x_test=_images(), y_test=np.arange(N) % 10)


def _sheets(root: Path) -> None:
    (root / "cifar10").mkdir()
    write_sheet(root / "cifar10" / "test.webp", _images(), columns=5, method=0)
    labels = {"classes": CLASSES, "test_labels": [i % 10 for i in range(N)]}
    (root / "cifar10" / "labels.json").write_text(json.dumps(labels))


def _arrays(root: Path) -> None:
    folder = root / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "fog.npy", np.concatenate([_images(s) for s in range(5)]))
    np.save(folder / "labels.npy", np.tile(np.arange(N) % 10, 5).astype(np.uint8))
    (folder / "made.json").write_text(json.dumps({"severities": [1, 2, 3, 4, 5]}))


def _mnist(root: Path) -> None:
    (root / "mnist").mkdir()
    images = gzip.compress(_idx(_images()[:, :28, :28, 0]))
    (root / "mnist" / "t10k-images-idx3-ubyte.gz").write_bytes(images)
    (root / "mnist" / "t10k-labels-idx1-ubyte").write_bytes(_idx(np.arange(N) % 10))


def _svhn(compressed: bool) -> Callable[[Path], None]:
    def write(root: Path) -> None:
        (root / "svhn").mkdir()
        content = {"X": _images().transpose(1, 2, 3, 0), "y": (np.arange(N) % 10 + 1)[:, None]}
        savemat(root / "svhn" / "test_32x32.mat", content, do_compression=compressed)

    return write


def _folder(root: Path) -> None:
    for index, form in enumerate(("PNG", "JPEG", "WEBP", "BMP")):
        group = root / "pictures" / CLASSES[index % 2]
        group.mkdir(parents=True, exist_ok=True)
        (group / f"{index}.{form.lower()}").write_bytes(_png(_images()[index], form))


KINDS: list[tuple[str, Callable[[Path], None]]] = [
    ("cifar10", _batches),
    ("cifar10", _npz),
    ("cifar10", _sheets),
    ("cifar10-c", _arrays),
    ("mnist", _mnist),
    ("svhn", _svhn(compressed=True)),
    ("svhn", _svhn(compressed=False)),
    ("folder:pictures", _folder),
]


def _loaded(name: str, root: Path) -> int:
    base, _, option = name.partition(":")
    dataset = load_dataset(f"{base}:{root / option}" if option else name, root)
    positions = np.arange(min(4, len(dataset)), dtype=np.int64)
    dataset.read(positions, "fog" if name.endswith("-c") else "clean")
    if not option:
        check_dataset(name, root)
    assert dataset.images.shape[0] == len(dataset)
    assert dataset.labels.max(initial=0) < dataset.n_classes
    return len(dataset)


@pytest.mark.slow
def test_damaged_folders_are_named_in_a_sentence(tmp_path: Path) -> None:
    """One file of a data set is cut, flipped, zeroed, emptied, removed or exchanged for another."""
    fuzzer, rng = Fuzzer(), random.Random(16)
    for number, (_, write) in enumerate(KINDS):
        (tmp_path / f"whole{number}").mkdir()
        write(tmp_path / f"whole{number}")
    for number in range(CASES):
        name, _ = KINDS[number % len(KINDS)]
        root = tmp_path / "damaged"
        shutil.copytree(tmp_path / f"whole{number % len(KINDS)}", root)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        path = rng.choice(files)
        how = rng.choice(["damage"] * 8 + ["swap", "remove", "folder"])
        if how == "damage":
            path.write_bytes(damaged(path.read_bytes(), rng))
        elif how == "swap":
            path.write_bytes(rng.choice(files).read_bytes())
        else:
            path.unlink()
            if how == "folder":
                path.mkdir()
        fuzzer.run(f"{number} {name} {how} {path.name}", lambda name=name, root=root: _loaded(name, root))
        shutil.rmtree(root)
    fuzzer.finish(CASES)


@pytest.mark.slow
def test_strange_names_roots_and_archives_are_a_sentence(tmp_path: Path) -> None:
    """Data set names, splits, roots and protocols of any kind."""
    fuzzer, rng = Fuzzer(), random.Random(17)
    (tmp_path / "imagenet" / "val" / "n01").mkdir(parents=True)
    (tmp_path / "imagenet" / "val" / "n01" / "a.png").write_bytes(_png(_images()[0]))
    known = [
        "demo",
        "noise",
        "cifar10",
        "mnist",
        "imagenet:",
        "imagenet:5k",
        "folder:",
        "imagenet:per-class-",
    ]
    for number in range(NAMES):
        value: Any = hostile(rng)
        name = rng.choice(known) + (value if isinstance(value, str) else "") if rng.random() < 0.7 else value
        root = hostile(rng) if rng.random() < 0.3 else tmp_path
        split = hostile(rng) if rng.random() < 0.2 else "test"
        fuzzer.run(
            f"{number} {shown(name)} {type(root)}", lambda n=name, r=root, s=split: load_dataset(n, r, s)
        )
        if number % 8 == 0:
            archive = tmp_path / "archive.tar.gz"
            archive.write_bytes(damaged(gzip.compress(rng.randbytes(600)), rng))
            fuzzer.run("archive", lambda archive=archive: unpack(archive, tmp_path / "out"))
    fuzzer.finish(NAMES)
