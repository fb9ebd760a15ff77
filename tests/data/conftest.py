"""Small stand-ins for the published data sets, in every layout."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sicl.data.cifar import CIFARS

N_TEST, N_TRAIN = 40, 100
CIFAR10_CLASSES = CIFARS["cifar10"].classes


def _pictures(count: int, seed: int) -> np.ndarray:
    """Smooth random pictures, each unlike the others."""
    coarse = np.random.default_rng(seed).integers(0, 256, (count, 4, 4, 3), np.uint8)
    return coarse.repeat(8, axis=1).repeat(8, axis=2)


@pytest.fixture(scope="session")
def cifar_arrays() -> dict[str, np.ndarray]:
    """Test and training images and labels of a small CIFAR-10."""
    return {
        "x_test": _pictures(N_TEST, 0),
        "y_test": np.arange(N_TEST, dtype=np.int64) % 10,
        "x_train": _pictures(N_TRAIN, 1),
        "y_train": np.arange(N_TRAIN, dtype=np.int64) * 7 % 10,
    }


def _write_batches(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    def dump(name: str, images: np.ndarray, labels: np.ndarray) -> None:
        data = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
        content = {
            b"data": np.ascontiguousarray(data),
            b"labels": labels.tolist(),
            b"batch_label": b"a batch",
        }
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))

    dump("test_batch", arrays["x_test"], arrays["y_test"])
    for part in range(5):
        piece = slice(part * N_TRAIN // 5, (part + 1) * N_TRAIN // 5)
        dump(f"data_batch_{part + 1}", arrays["x_train"][piece], arrays["y_train"][piece])
    names = [name.encode() for name in CIFAR10_CLASSES]
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, protocol=2))


def _write_row_sheets(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    Image.fromarray(arrays["x_test"].reshape(N_TEST, 1024, 3)).save(folder / "test_batch.png")
    for part, images in enumerate(np.split(arrays["x_train"], 5), 1):
        Image.fromarray(images.reshape(len(images), 1024, 3)).save(folder / f"data_batch_{part}.png")
    (folder / "test_lables.json").write_text(json.dumps(arrays["y_test"].tolist()))
    (folder / "train_lables.json").write_text(json.dumps(arrays["y_train"].tolist()))


def _write_sheets(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    from sicl.data.sheets import write_sheet

    write_sheet(folder / "test.webp", arrays["x_test"], columns=7, method=0)
    write_sheet(folder / "train.png", arrays["x_train"], columns=10)
    labels = {f"{part}_labels": arrays[f"y_{part}"].tolist() for part in ("test", "train")}
    (folder / "labels.json").write_text(json.dumps({"classes": CIFAR10_CLASSES, **labels}))


def _write_npz(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(folder / "cifar10.npz", **arrays)


def _write_folders(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    for part in ("test", "train"):
        for index, (image, label) in enumerate(zip(arrays[f"x_{part}"], arrays[f"y_{part}"])):
            group = folder / part / CIFAR10_CLASSES[label]
            group.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(group / f"{index:05d}.png")


WRITERS: dict[str, Callable[[Path, dict[str, np.ndarray]], None]] = {
    "batches": _write_batches,
    "row sheets": _write_row_sheets,
    "sheets": _write_sheets,
    "npz": _write_npz,
    "folders": _write_folders,
}


@pytest.fixture(params=list(WRITERS))
def layout(request: pytest.FixtureRequest) -> str:
    """The name of one layout."""
    return str(request.param)


@pytest.fixture
def write_cifar(tmp_path: Path, cifar_arrays: dict[str, np.ndarray]) -> Callable[..., Path]:
    """Write the small CIFAR-10 in a layout; returns the data root."""

    def write(layout: str = "batches", folder: str = "cifar10") -> Path:
        place = tmp_path / "data" / folder
        place.mkdir(parents=True, exist_ok=True)
        WRITERS[layout](place, cifar_arrays)
        return tmp_path / "data"

    return write


@pytest.fixture
def write_cifar_c(tmp_path: Path, cifar_arrays: dict[str, np.ndarray]) -> Callable[..., Path]:
    """Write a small CIFAR-10-C with given corruptions; pixel values tell corruption and severity apart."""

    def write(*names: str) -> Path:
        folder = tmp_path / "data" / "CIFAR-10-C"
        folder.mkdir(parents=True, exist_ok=True)
        for number, name in enumerate(names):
            blocks = [cifar_arrays["x_test"] // 2 + 10 * severity + number for severity in range(1, 6)]
            np.save(folder / f"{name}.npy", np.concatenate(blocks).astype(np.uint8))
        np.save(folder / "labels.npy", np.tile(cifar_arrays["y_test"], 5).astype(np.uint8))
        return tmp_path / "data"

    return write


@pytest.fixture
def write_imagenet(tmp_path: Path) -> Callable[..., Path]:
    """Write a small ImageNet: three classes of validation and training images of odd sizes."""

    def write(per_class: int = 7) -> Path:
        generator = np.random.default_rng(0)
        for part, count in (("val", per_class), ("train", 10)):
            for group in ("n01", "n02", "n03"):
                folder = tmp_path / "data" / "imagenet" / part / group
                folder.mkdir(parents=True, exist_ok=True)
                for index in range(count):
                    pixels = generator.integers(0, 256, (5, 6, 3), np.uint8).repeat(50, 0).repeat(50, 1)
                    Image.fromarray(pixels).save(folder / f"{part}_{group}_{index:03d}.JPEG")
        return tmp_path / "data"

    return write


def idx_bytes(array: np.ndarray) -> bytes:
    """Return an array of unsigned bytes as an IDX file's content."""
    header = struct.pack(f">I{array.ndim}I", 2048 + array.ndim, *array.shape)
    return header + array.astype(np.uint8).tobytes()


@pytest.fixture
def write_mnist(tmp_path: Path) -> Path:
    """Write a small MNIST test set; returns the data root."""
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (12, 28, 28), np.uint8)
    (folder / "t10k-images-idx3-ubyte").write_bytes(idx_bytes(images))
    (folder / "t10k-labels-idx1-ubyte").write_bytes(idx_bytes(np.arange(12) % 10))
    return tmp_path / "data"
