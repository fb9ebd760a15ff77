"""Claim: the corruptions agree with the authors' generator, and 10,000 images take under 90 s on two cores.

    python benchmarks/corruptions.py --reference DIR --cifar10 DIR --weights FILE

`--reference` holds `<corruption>.webp` (or .png): the first test images at severity 5, in sheets of 32-px tiles.
`--cifar10` holds `test_batch.png` (a row of 1,024 pixels an image) and `test_lables.json`. `--weights` is a
CIFAR-10 checkpoint. Leave `--reference` and `--weights` out to measure the speed only, and `--cifar10` too to
measure it on random images.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from scipy.ndimage import uniform_filter

from sicl.corruptions import CORRUPTIONS, VALIDATION_CORRUPTIONS, corrupt
from sicl.models.zoo import load_model

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]

DETERMINISTIC = ("defocus_blur", "zoom_blur", "brightness", "contrast", "pixelate", "jpeg_compression")
SIDE = 32


def read_sheet(path: Path) -> Bytes:
    """Return the 32-px tiles of a picture, row by row."""
    pixels = np.asarray(Image.open(path).convert("RGB"))
    rows, columns = pixels.shape[0] // SIDE, pixels.shape[1] // SIDE
    return pixels.reshape(rows, SIDE, columns, SIDE, 3).swapaxes(1, 2).reshape(-1, SIDE, SIDE, 3)


def read_cifar10(folder: Path) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Return the CIFAR-10 test images and labels."""
    pixels = np.asarray(Image.open(folder / "test_batch.png").convert("RGB"))
    labels = np.array(json.loads((folder / "test_lables.json").read_text()), dtype=np.int64)
    return pixels.reshape(-1, SIDE, SIDE, 3), labels


def image_statistics(images: Bytes) -> dict[str, Floats]:
    """Return each image's mean, standard deviation and high-frequency energy.

    The energy is the mean square of what a 3 x 3 box filter takes away.
    """
    pixels = images.astype(np.float64)
    fine = pixels - uniform_filter(pixels, (1, 3, 3, 1), mode="nearest")
    return {
        "mean": pixels.mean(axis=(1, 2, 3)),
        "deviation": pixels.std(axis=(1, 2, 3)),
        "energy": (fine**2).mean(axis=(1, 2, 3)),
    }


def largest_difference(ours: Floats, theirs: Floats) -> float:
    """Return the largest relative difference of mean and quartiles of two distributions, in per cent."""
    points = [np.array([np.mean(x), *np.percentile(x, (25, 50, 75))]) for x in (ours, theirs)]
    return float(np.abs(points[0] / points[1] - 1).max() * 100)


def accuracy(model: torch.nn.Module, images: Bytes, labels: npt.NDArray[np.int64]) -> float:
    """Return the share of right predictions, in per cent."""
    right = 0
    with torch.inference_mode():
        for start in range(0, len(images), 100):
            batch = torch.tensor(images[start : start + 100]).permute(0, 3, 1, 2).float() / 255
            right += int((model(batch).argmax(1).numpy() == labels[start : start + 100]).sum())
    return 100 * right / len(images)


def agreement(
    name: str,
    reference: Path,
    images: Bytes,
    labels: npt.NDArray[np.int64],
    model: torch.nn.Module,
    seed: int,
) -> str:
    """Return one table row that compares our images with the reference's."""
    sheets = [reference / f"{name}{suffix}" for suffix in (".webp", ".png")]
    theirs = read_sheet(next(sheet for sheet in sheets if sheet.is_file()))
    ours = corrupt(images[: len(theirs)], name, severity=5, seed=seed)
    gap = np.abs(ours.astype(np.int64) - theirs).mean()
    left, right = image_statistics(ours), image_statistics(theirs)
    worst = {key: largest_difference(left[key], right[key]) for key in left}
    scores = [accuracy(model, part, labels[: len(theirs)]) for part in (ours, theirs)]
    kind = "deterministic" if name in DETERMINISTIC else "random"
    ok = gap < 2 if name in DETERMINISTIC else max(worst.values()) < 10
    ok = ok and abs(scores[0] - scores[1]) < 4
    return (
        f"| {name} | {kind} | {gap:.3f} | {worst['mean']:.1f} | {worst['deviation']:.1f} | "
        f"{worst['energy']:.1f} | {scores[0]:.1f} | {scores[1]:.1f} | {'yes' if ok else 'NO'} |"
    )


def main() -> None:
    """Print hardware, the table of agreement and the table of times."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cifar10", type=Path)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--only", nargs="+", choices=CORRUPTIONS, default=CORRUPTIONS, metavar="NAME")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--speed-images", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    images = np.random.default_rng(0).integers(0, 256, (10_000, SIDE, SIDE, 3), dtype=np.uint8)
    if options.cifar10 is not None:
        images, labels = read_cifar10(options.cifar10)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, {options.threads} threads, device {options.device}, "
        f"python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}, "
        f"load {os.getloadavg()[0]:.1f}"
    )
    if None not in (options.reference, options.weights, options.cifar10):
        model = load_model(str(options.weights)).eval()
        print(
            "\n| corruption | kind | mean abs difference | mean % | deviation % | energy % | acc ours | theirs | ok |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
        for name in options.only:
            print(agreement(name, options.reference, images, labels, model, options.seed), flush=True)
    if options.speed_images > 0:
        report_speed(torch.tensor(images[: options.speed_images], device=options.device))


def report_speed(images: torch.Tensor) -> None:
    """Print the wall and processor time each corruption takes at severity 5, and how busy the machine was.

    On a machine with other work, two threads that wait for each other make the wall time grow and vary.
    """
    print(f"\n| corruption | seconds for {len(images):,} images | processor seconds |\n|---|---|---|")
    totals, load = np.zeros(2), [os.getloadavg()[0]]
    for name in (*CORRUPTIONS, *VALIDATION_CORRUPTIONS):
        start = np.array([time.perf_counter(), time.process_time()])
        int(corrupt(images, name, severity=5)[-1, 0, 0, 0])  # reading a value waits for a GPU
        seconds = np.array([time.perf_counter(), time.process_time()]) - start
        totals += seconds if name in CORRUPTIONS else 0.0
        load.append(os.getloadavg()[0])
        print(f"| {name} | {seconds[0]:.2f} | {seconds[1]:.2f} |", flush=True)
    print(f"| the fifteen together | {totals[0]:.1f} | {totals[1]:.1f} |")
    print(f"\nLoad average meanwhile: {min(load):.1f} to {max(load):.1f}.")


if __name__ == "__main__":
    main()
