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

from sicl.data.cifar import CIFARS
from sicl.data.corrupted import MANIFEST, SEVERITIES
from sicl.data.dataset import Dataset
from sicl.data.images import Files
from sicl.data.load import C_FOLDERS, load_dataset
from sicl.data.make_blocks import BlockTask, FileTask, assemble, prepare_worker
from sicl.data.sheets import read_json
from sicl.errors import DataError, OptionError, require_choice, require_positive
from sicl.spec import Spec

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
        return C_FOLDERS[base][0]
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
    part = manifest.with_suffix(".part")
    part.write_text(json.dumps(wanted, indent=1) + "\n")
    part.replace(manifest)


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
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.save(file, array)
    part.replace(path)
