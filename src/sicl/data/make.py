"""Make a -C data set in its official layout from clean images, in parallel and restartable."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from sicl.data.cifar import CIFARS
from sicl.data.corrupted import MANIFEST, SEVERITIES
from sicl.data.dataset import Dataset
from sicl.data.files import KNOWN, written
from sicl.data.images import Files, Uint8Images
from sicl.data.load import load_dataset
from sicl.data.npy import map_npy, write_npy
from sicl.data.sheets import read_json
from sicl.errors import DataError, OptionError, require_choice, require_positive
from sicl.spec import Spec

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


_FILES_A_TASK = 200


@dataclass(frozen=True, kw_only=True)
class Recipe(Spec):
    """What to make.

    Args:
        corruptions: names; none means all nineteen.
        severities: which of 1 to 5; the others' places in an array stay empty and are noted as such.
        seed: of the random corruptions.
    """

    corruptions: tuple[str, ...] = ()
    severities: tuple[int, ...] = SEVERITIES
    seed: int = 0

    def __post_init__(self) -> None:
        from sicl.corruptions import CORRUPTIONS, VALIDATION_CORRUPTIONS

        every = (*CORRUPTIONS, *VALIDATION_CORRUPTIONS)
        for name in self.corruptions:
            require_choice(every, corruption=name)
        object.__setattr__(self, "corruptions", self.corruptions or every)
        if not self.severities or not set(self.severities) <= set(SEVERITIES):
            raise OptionError(f"`severities` must be some of 1 to 5, got {self.severities!r}.")


def make_corrupted(
    name: str,
    out: Path,
    *,
    root: str | os.PathLike[str] | None = None,
    recipe: Recipe | None = None,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the -C version of a clean data set and return its folder.

    CIFAR becomes `<corruption>.npy` (five severities, in order) and `labels.npy`; folders of images become
    `<corruption>/<severity>/<class>/<file>.JPEG`. A run that was stopped goes on where it was; what is complete
    is not made again.

    Args:
        name: "cifar10", "cifar100", "imagenet", "imagenet:5k", "folder:PATH", "demo".
        out: the folder to write into; CIFAR-10 goes to `CIFAR-10-C` in it, and so on.
        root: where the clean data are.
        recipe: what to make; by default everything.
        workers: processes.
        progress: called with the pieces done and the pieces in all.

    Raises:
        DataError: the clean data are missing, or `out` holds a data set made in another way.
    """
    require_positive(workers=workers)
    chosen = recipe or Recipe()
    clean = load_dataset(name, root)
    folder = out / target_folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    _claim(folder, clean, chosen)
    if isinstance(clean.images, Files):
        _run(list(_file_tasks(clean, clean.images, folder, chosen)), workers, progress)
    else:
        _make_arrays(clean, folder, chosen, workers, progress)
    return folder


def target_folder(name: str) -> str:
    """Return the official folder name of a data set's -C version."""
    base, _, option = name.partition(":")
    if base in CIFARS:
        return str(KNOWN[f"{base}-c"]["folders"][0])
    if base == "imagenet":
        return "ImageNet-C"
    if base in ("folder", "demo"):
        return f"{Path(option).name or base}-C"
    raise OptionError(f"`dataset` must be cifar10, cifar100, imagenet, demo or folder:PATH; got {name!r}.")


def _claim(folder: Path, clean: Dataset, recipe: Recipe) -> None:
    """Note what is made before the first piece is; refuse a folder that holds something else."""
    manifest = folder / MANIFEST
    wanted = {
        "dataset": clean.name,
        "fingerprint": clean.fingerprint,
        "count": len(clean),
        "seed": recipe.seed,
        "severities": sorted(recipe.severities),
    }
    if manifest.is_file():
        found = read_json(manifest)
        if found != wanted:
            raise DataError(
                f"`{folder}` was made from other data or options ({manifest.name} differs); choose another `--out` or "
                "remove the folder."
            )
    elif any(folder.iterdir()):
        raise DataError(
            f"`{folder}` holds files that `sicl data make` did not write; choose another `--out`."
        )
    with written(manifest) as file:
        file.write((json.dumps(wanted, indent=1) + "\n").encode())


def _make_arrays(
    clean: Dataset, folder: Path, recipe: Recipe, workers: int, progress: Callable[[int, int], None] | None
) -> None:
    parts = folder / ".parts"
    missing = [name for name in recipe.corruptions if not (folder / f"{name}.npy").is_file()]
    if missing:
        parts.mkdir(exist_ok=True)
        source = parts / "clean.npy"
        _save(source, np.asarray(clean.images[np.arange(len(clean), dtype=np.int64)]))
        _save(parts / "indices.npy", clean.indices)
        pieces = [(name, severity) for name in missing for severity in sorted(recipe.severities)]
        tasks = [BlockTask(source, name, severity, recipe.seed) for name, severity in pieces]
        _run([task for task in tasks if not task.target.is_file()], workers, progress)
        for name in missing:
            assemble(folder, parts, name, sorted(recipe.severities), clean.images.shape)
    _save(folder / "labels.npy", np.tile(clean.labels, len(SEVERITIES)).astype(np.uint8))
    if parts.is_dir():
        shutil.rmtree(parts)


def _file_tasks(clean: Dataset, images: Files, folder: Path, recipe: Recipe) -> Iterator[FileTask]:
    for name in recipe.corruptions:
        for severity in sorted(recipe.severities):
            base = folder / name / str(severity)
            for start in range(0, len(clean), _FILES_A_TASK):
                paths = tuple(images.paths[start : start + _FILES_A_TASK])
                numbers = tuple(map(int, clean.indices[start : start + _FILES_A_TASK]))
                task = FileTask(paths, numbers, images.size, images.resize, name, severity, recipe.seed, base)
                if task.missing():
                    yield task


def _run(
    tasks: Sequence[BlockTask | FileTask], workers: int, progress: Callable[[int, int], None] | None
) -> None:
    def done(count: int) -> None:
        if progress is not None:
            progress(count, len(tasks))

    if workers == 1 or len(tasks) <= 1:
        for count, task in enumerate(tasks, 1):
            task.run()
            done(count)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(tasks)), context, prepare_worker) as pool:
        pending = [pool.submit(task.run) for task in tasks]
        try:
            for count, future in enumerate(as_completed(pending), 1):
                future.result()
                done(count)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _save(path: Path, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
    with written(path) as file:
        np.save(file, array)
