"""Pictures of a folder as a model takes them, and their true classes where these are known."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn

from sicl.errors import DataError, OptionError, nearest

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
Preprocess = Callable[[Image.Image], Tensor]


def find_pictures(folder: Path) -> list[str]:
    """Return the pictures below a folder, as paths relative to it, sorted.

    Raises:
        DataError: there is no such folder, or no picture in it.
    """
    if not folder.is_dir():
        raise DataError(f"`images` must be a folder of pictures, {folder} is none.")
    found = sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.suffix.lower() in SUFFIXES and not path.is_dir() and not path.name.startswith(".")
    )
    if not found:
        known = ", ".join(suffix[1:] for suffix in SUFFIXES)
        raise DataError(f"{folder} holds no pictures ({known}), neither directly nor in folders below.")
    return found


def open_picture(path: Path) -> Image.Image:
    """Return a picture as people see it: in RGB, turned the way its camera noted; of a moving one, the first frame.

    Raises:
        DataError: the file cannot be read as a picture.
    """
    try:
        with warnings.catch_warnings(), Image.open(path) as file:
            warnings.simplefilter(
                "ignore"
            )  # Of size or damage: what can be read is read, the rest is refused.
            return _eight_bits(ImageOps.exif_transpose(file)).convert("RGB")
    except Exception as error:  # A damaged file makes decoders raise anything.
        reason = str(error).replace(str(path), path.name) or type(error).__name__
        raise DataError(f"{path.name} cannot be read ({reason}).") from error


def _eight_bits(picture: Image.Image) -> Image.Image:
    """Return a grey picture of more than 8 bits a pixel in 8; Pillow would cut it off at 255."""
    if not picture.mode.startswith(("I", "F")):
        return picture
    pixels = np.asarray(picture, np.float64)
    largest = max(1.0, pixels.max()) if picture.mode == "F" else max(65535.0, pixels.max())
    return Image.fromarray((255 * (pixels / largest).clip(0, 1)).round().astype(np.uint8))


def read_batch(
    paths: Sequence[Path], preprocess: Preprocess
) -> tuple[Tensor | None, list[int], dict[int, str]]:
    """Return the images that can be read, their places in `paths`, and the reason for each of the others."""
    images, places, unread = [], [], {}
    for i, path in enumerate(paths):
        try:
            images.append(preprocess(open_picture(path)))
            places.append(i)
        except DataError as error:
            unread[i] = str(error)
    return (torch.stack(images) if images else None), places, unread


def preprocess_of(model: nn.Module, size: int | None = None) -> Preprocess:
    """Return the model's own preprocessing; for a model without one, or with `size`, a central square.

    Raises:
        OptionError: the model does not say what size it takes, and `size` is not given.
    """
    own = getattr(model, "preprocess", None)
    if callable(own) and size is None:
        return own  # type: ignore[no-any-return]
    side = size or _side(model)
    if side is None:
        raise OptionError("`size` must be given: the model does not say how large its pictures are.")
    return _Square(side)


class _Square:
    def __init__(self, side: int) -> None:
        self.side = side

    def __call__(self, picture: Image.Image) -> Tensor:
        fitted = ImageOps.fit(picture, (self.side, self.side), Image.Resampling.BICUBIC)
        pixels = torch.frombuffer(bytearray(fitted.tobytes()), dtype=torch.uint8)
        return pixels.view(self.side, self.side, 3).permute(2, 0, 1).float() / 255


def _side(model: nn.Module) -> int | None:
    inner = getattr(model, "model", model)
    config: Any = getattr(inner, "pretrained_cfg", None) or {}
    size = config.get("input_size", (0, 0))[-1] or getattr(getattr(inner, "config", None), "image_size", None)
    if not size and getattr(model, "conv1", None) is not None and model.conv1.stride == (1, 1):
        size = 32  # A CIFAR stem.
    return int(size) if size else None


def class_names(
    model: nn.Module, n_classes: int, given: Path | None, *, demo: bool = False
) -> tuple[str, ...]:
    """Return the names of the classes: those given, the model's own, or their numbers.

    Args:
        model: the classifier; `model.classes` or a Hugging Face configuration names its classes.
        n_classes: how many it has.
        given: a text file with one name a line.
        demo: the embedded model, whose classes are CIFAR-10's.
    """
    if given is not None:
        try:
            names = [line.strip() for line in given.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"`classes` {given} cannot be read ({error}).") from error
        if len(names) != n_classes:
            raise DataError(
                f"`classes` must name the model's {n_classes} classes, {given} has {len(names)} lines."
            )
        return tuple(names)
    own = getattr(model, "classes", None) or getattr(getattr(model, "model", model), "classes", None)
    table = getattr(getattr(getattr(model, "model", model), "config", None), "id2label", None)
    if not own and isinstance(table, dict):
        own = [table[i] for i in sorted(table)]
    if not own and demo:
        own = CIFAR10
    return tuple(map(str, own)) if own and len(own) == n_classes else tuple(map(str, range(n_classes)))


def true_classes(
    files: Sequence[str], names: Sequence[str], table: Path | None
) -> tuple[dict[str, int], str]:
    """Return the true class of each file that has one, and how it was known (empty if none are).

    From a CSV file with columns `file` and `label`, or from folders that are named like classes, or numbered,
    or exactly as many as there are classes (then in the order of their names, as torchvision has it).
    """
    if table is not None:
        return _from_table(files, names, table), f"labels of {table.name}"
    folders = [file.split("/")[0] if "/" in file else "" for file in files]
    distinct = sorted(set(folders) - {""})
    known = _numbers(distinct, len(names)) | {name: i for i, name in enumerate(names)}
    if distinct and all(folder in known for folder in distinct):
        how = "folders named by class"
    elif len(distinct) == len(names):
        known, how = {folder: i for i, folder in enumerate(distinct)}, "folders in the order of the classes"
    else:
        return {}, ""
    return {file: known[folder] for file, folder in zip(files, folders) if folder in known}, how


def _from_table(files: Sequence[str], names: Sequence[str], table: Path) -> dict[str, int]:
    try:
        with table.open(newline="", encoding="utf-8") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"`labels` {table} cannot be read ({error}).") from error
    if not rows or not {"file", "label"} <= rows[0].keys():
        raise DataError(f"`labels` {table} must have the columns file and label.")
    known = _numbers([str(row["label"]) for row in rows], len(names)) | {n: i for i, n in enumerate(names)}
    wrong = next((row["label"] for row in rows if row["label"] not in known), None)
    if wrong is not None:
        raise DataError(
            f"`labels` {table} has the label {wrong!r}, no class of the model.{nearest(wrong, known)}"
        )
    there = set(files)
    return {row["file"]: known[row["label"]] for row in rows if row["file"] in there}


def _numbers(words: Sequence[str], n_classes: int) -> dict[str, int]:
    """Return the words that are numbers of classes, also with leading zeros."""
    found = {word: int(word) for word in words if word.isascii() and word.isdigit() and len(word) < 10}
    return {word: number for word, number in found.items() if number < n_classes}
