"""The pieces a -C data set is made of; each is written aside and renamed, so a stopped run loses one at most."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from sicl.data.corrupted import SEVERITIES
from sicl.data.images import Files, Uint8Images
from sicl.data.npy import map_npy, write_npy

JPEG_QUALITY = 85
"""What the authors of ImageNet-C saved with."""

_IMAGES_AT_ONCE = 500


@dataclass(frozen=True)
class BlockTask:
    """One corruption at one severity of all images in `source` (a mapped .npy), as one array."""

    source: Path
    corruption: str
    severity: int
    seed: int

    @property
    def target(self) -> Path:
        """Where the block goes."""
        return self.source.parent / f"{self.corruption}-{self.severity}.npy"

    def run(self) -> None:
        """Make the block."""
        from sicl.corruptions import corrupt

        clean = map_npy(self.source)
        indices = np.asarray(map_npy(self.source.parent / "indices.npy"))

        def made(start: int) -> Uint8Images:
            piece = slice(start, start + _IMAGES_AT_ONCE)
            pixels = np.array(clean[piece], np.uint8)
            severity, seed = self.severity, self.seed
            return corrupt(pixels, self.corruption, severity=severity, seed=seed, indices=indices[piece])

        starts = range(0, len(clean), _IMAGES_AT_ONCE)
        write_npy(self.target, clean.shape, ((start, made(start)) for start in starts))


@dataclass(frozen=True)
class FileTask:
    """One corruption at one severity of some image files, each to a JPEG of its own."""

    paths: tuple[Path, ...]
    indices: tuple[int, ...]
    size: int
    resize: int
    corruption: str
    severity: int
    seed: int
    folder: Path

    def targets(self) -> list[Path]:
        """Where the images go: `<class>/<file>.JPEG`."""
        return [self.folder / path.parent.name / f"{path.stem}.JPEG" for path in self.paths]

    def missing(self) -> list[int]:
        """Return which of the images are still to be made."""
        return [i for i, target in enumerate(self.targets()) if not target.is_file()]

    def run(self) -> None:
        """Make the images that are missing."""
        from sicl.corruptions import corrupt

        wanted = np.array(self.missing(), np.int64)
        if not len(wanted):
            return
        pixels = Files(self.paths, self.size, self.resize)[wanted]
        indices = np.array(self.indices, np.int64)[wanted]
        made = corrupt(pixels, self.corruption, severity=self.severity, seed=self.seed, indices=indices)
        targets = self.targets()
        for position, image in zip(wanted, made):
            target = targets[position]
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_suffix(f".{os.getpid()}.part")
            Image.fromarray(image).save(part, format="JPEG", quality=JPEG_QUALITY, optimize=True)
            part.replace(target)


def assemble(
    folder: Path, parts: Path, corruption: str, severities: Sequence[int], shape: tuple[int, ...]
) -> None:
    """Join a corruption's blocks to the official array; severities that were not made stay empty."""
    blocks = {severity: parts / f"{corruption}-{severity}.npy" for severity in severities}
    pieces = (((s - 1) * shape[0], np.asarray(map_npy(block), np.uint8)) for s, block in blocks.items())
    write_npy(folder / f"{corruption}.npy", (len(SEVERITIES) * shape[0], *shape[1:]), pieces)
    for block in blocks.values():
        block.unlink()


def prepare_worker() -> None:
    """Give each process one thread: the processes are the parallelism."""
    import torch

    torch.set_num_threads(1)
