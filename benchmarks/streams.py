"""Claim: streaming CIFAR-10-C costs less than 5 % of a TENT run's wall time; memory stays flat at 224 pixels.

Without --data a stand-in of the official size is written to a temporary folder: fifteen arrays of
50,000 x 32 x 32 x 3 with the embedded images repeated. Reading it costs what reading the published files costs.

Run: python benchmarks/streams.py [--device cuda] [--data DIR] [--model demo] [--memory]
"""

from __future__ import annotations

import argparse
import platform
import resource
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import sicl
from sicl.corruptions import CORRUPTIONS
from sicl.data import Dataset, load_dataset
from sicl.data.images import Images
from sicl.data.load import find_arrays
from sicl.streams import Benign, Dynamic, OpenStream
from sicl.types import Batch

OFFICIAL = 10_000


def write_stand_in(root: Path, clean: Dataset) -> None:
    """Write fifteen arrays of the official shape; only severity 5 takes space."""
    folder = root / "CIFAR-10-C"
    folder.mkdir(parents=True)
    positions = np.arange(OFFICIAL) % len(clean)
    images = np.asarray(clean.images[positions])
    for name in CORRUPTIONS:
        array = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.uint8, (5 * OFFICIAL, 32, 32, 3))
        array[4 * OFFICIAL :] = images
        array.flush()
    np.save(folder / "labels.npy", np.tile(clean.labels[positions], 5).astype(np.uint8))


def timed(work: Iterable[object], device: torch.device) -> float:
    """Return the seconds an iteration takes, device work included."""
    started = time.perf_counter()
    for _ in work:
        pass
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


def tent_over(batches: Iterable[Batch], model: torch.nn.Module) -> Iterable[object]:
    """Adapt over batches."""
    adapted = sicl.Tent().attach(model)
    for batch in batches:
        yield adapted(batch.images)


def best(seconds: list[float]) -> float:
    """Return the fastest of the repeats: the others measure the neighbours."""
    return min(seconds)


def report(label: str, opened: OpenStream, model: torch.nn.Module, repeats: int) -> None:
    """Print the stream's own time, the TENT run's, and the share."""
    device = opened.device
    alone = best([timed(opened, device) for _ in range(repeats)])
    run = best([timed(tent_over(opened, model), device) for _ in range(repeats)])
    ready = list(opened)
    bare = best([timed(tent_over(ready, model), device) for _ in range(repeats)])
    print(
        f"{label:28s} stream alone {alone:7.3f} s   TENT run {run:7.3f} s   share {alone / run:6.2%}   "
        f"TENT on ready batches {bare:7.3f} s   added {run / bare - 1:+6.2%}"
    )


class Painted:
    """10,000 images of 224 pixels, made when read: stands for files on disk."""

    shape: tuple[int, ...] = (10_000, 224, 224, 3)

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        """Make the images asked for."""
        return np.repeat(positions.astype(np.uint8), 224 * 224 * 3).reshape(-1, 224, 224, 3)


def report_memory() -> None:
    """Print how much the process grew while 10,000 images of 224 pixels passed through."""
    images: Images = Painted()
    dataset = Dataset("painted", images, np.zeros(10_000, np.int64))
    opened = Benign(corruption="clean").open(dataset)
    next(iter(opened))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    count = sum(len(batch) for batch in opened)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"memory: {count:,} images of 224 px (6.0 GB as floats) in {time.perf_counter() - started:.1f} s; peak "
        f"resident {before / 1024:.0f} MiB after the first batch, {after / 1024:.0f} MiB after the last"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a folder with CIFAR-10-C and CIFAR-10")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="demo", help="demo, or a checkpoint's path")
    parser.add_argument("--per-corruption", type=int, default=667)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    device = torch.device(options.device)
    name = (
        torch.cuda.get_device_name() if device.type == "cuda" else platform.processor() or platform.machine()
    )
    stream = Dynamic(per_corruption=options.per_corruption, batch_size=options.batch_size)
    print(
        f"python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}, {device} ({name}), "
        f"{torch.get_num_threads()} threads, model {options.model}, n {15 * options.per_corruption:,}, "
        f"batch {options.batch_size}, best of {options.repeats}"
    )
    model = sicl.load_model(options.model, device=device)
    with tempfile.TemporaryDirectory() as temporary:
        clean = load_dataset("cifar10", options.data) if options.data else load_dataset("demo")
        root = options.data
        if root is None or find_arrays("cifar10", root) is None:
            root = Path(temporary)
            write_stand_in(root, clean)
        files = load_dataset("cifar10-c", root)
        for batch in tent_over(stream.open(files, device=device), model):
            del batch
        report("published files", stream.open(files, device=device), model, options.repeats)
        grown = replace(clean.subset(np.arange(OFFICIAL) % len(clean)), indices=np.arange(OFFICIAL))
        cached = stream.open(grown, device=device, cache=Path(temporary) / "cache")
        print(f"made for the first time: {timed(cached, device):.3f} s (fills the cache)")
        report("made, from the cache", cached, model, options.repeats)
        report("made while streaming", stream.open(grown, device=device), model, options.repeats)
    if options.memory:
        report_memory()


if __name__ == "__main__":
    main()
