"""How soon the monitor notices trouble, how often it is wrong, what its interval covers, and what it costs.

    python benchmarks/monitor.py [--n 384] [--streams 200] [--json FILE]

The embedded network, not adapted, predicts clean images, the fifteen corruptions at severity 1 and images it does
not know (line drawings made of the pictures, inverted pictures, noise, contrast at severity 5), each once. Streams
are drawn from these predictions: well ones (clean or one corruption at severity 1, 2,000 samples), and ones that
turn strange after 500. A corruption at severity 1 on which the network falls below two thirds of its accuracy is
counted as trouble, not as well.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sicl
from sicl.corruptions import CORRUPTIONS, corrupt
from sicl.data import load_dataset, source_data
from sicl.monitor import Detector, Monitored
from sicl.monitor.window import estimate_accuracy

Scores = dict[str, np.ndarray]


def drawings(pixels: np.ndarray) -> np.ndarray:
    """Return line drawings: dark where brightness changes, white elsewhere."""
    grey = pixels.astype(np.float64).mean(axis=3)
    edges = np.hypot(np.gradient(grey, axis=1), np.gradient(grey, axis=2))
    return np.repeat((255 - 4 * edges).clip(0, 255)[..., None], 3, axis=3).astype(np.uint8)


def conditions(pixels: np.ndarray) -> dict[str, tuple[str, Callable[[], np.ndarray]]]:
    """Return kinds of images: the group each belongs to, and how to make them."""
    kinds: dict[str, tuple[str, Callable[[], np.ndarray]]] = {"clean": ("well", lambda: pixels)}
    for name in CORRUPTIONS:
        kinds[f"{name} 1"] = ("well", lambda name=name: corrupt(pixels, name, severity=1))
    generator = np.random.default_rng(0)
    kinds["line drawings"] = ("strange", lambda: drawings(pixels))
    kinds["inverted"] = ("strange", lambda: 255 - pixels)
    kinds["noise"] = ("strange", lambda: generator.integers(0, 256, pixels.shape, dtype=np.uint8))
    kinds["contrast 5"] = ("strange", lambda: corrupt(pixels, "contrast", severity=5))
    return kinds


def as_images(pixels: np.ndarray) -> torch.Tensor:
    """Return N x 3 x H x W in [0, 1]."""
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255


def watched(calibrator: Any) -> Monitored:
    """Return a monitor that never forgets and never alarms: its window is what is wanted."""
    spec = sicl.Monitor(window=100_000, false_alarms=1e-30)
    trusted = calibrator.attach(sicl.load_model("demo"))
    return spec.attach(trusted, source=source_data(load_dataset("demo", split="val")))


def predict(calibrator: Any, pixels: np.ndarray, labels: np.ndarray) -> tuple[Scores, dict[str, float]]:
    """Return the scores of one kind of image, and the limits."""
    monitored = watched(calibrator)
    right, covered, size = [], [], []
    for start in range(0, len(pixels), 64):
        out = monitored(as_images(pixels[start : start + 64]))
        truth = labels[start : start + 64]
        sets = out.sets(coverage=0.9).numpy()
        right.append(out.labels.numpy() == truth)
        covered.append(sets[np.arange(len(truth)), truth])
        size.append(sets.sum(axis=1))
    kept = monitored.window.columns
    scores = {"accuracy": kept["confidence"], "familiarity": kept["familiarity"]}
    columns = {"right": right, "covered": covered, "size": size}
    return {**scores, **{name: np.concatenate(parts) for name, parts in columns.items()}}, monitored.limits


def alarm(parts: list[Scores], limits: dict[str, float]) -> int | None:
    """Return the sample at which a stream made of these parts alarms."""
    scores = {name: np.concatenate([part[name] for part in parts]) for name in ("accuracy", "familiarity")}
    return Detector(sicl.Monitor().false_alarms).add(scores, limits)


def drawn(scores: Scores, n: int, generator: np.random.Generator) -> Scores:
    """Return n samples, drawn with replacement."""
    chosen = generator.integers(0, len(scores["right"]), n)
    return {name: column[chosen] for name, column in scores.items()}


def alarms(kinds: dict[str, Any], limits: dict[str, float], streams: int) -> dict[str, Any]:
    """Return false alarms over well streams, and delays over those that turn strange."""
    generator = np.random.default_rng(1)
    floor = 2 / 3 * kinds["clean"][1]["right"].mean()
    well = [s for group, s in kinds.values() if group == "well" and s["right"].mean() >= floor]
    broken = {n: s for n, (group, s) in kinds.items() if group == "well" and s["right"].mean() < floor}
    strange = {n: s for n, (group, s) in kinds.items() if group == "strange"} | broken
    false = sum(
        alarm([drawn(well[i % len(well)], 2000, generator)], limits) is not None for i in range(streams)
    )
    table: dict[str, Any] = {"well": {"streams": streams, "samples": 2000 * streams, "false_alarms": false}}
    for name, scores in strange.items():
        runs = [
            alarm([drawn(well[i % len(well)], 500, generator), drawn(scores, 1000, generator)], limits)
            for i in range(max(1, streams // len(strange)))
        ]
        late = [run - 500 + 1 for run in runs if run is not None and run >= 500]
        table[name] = {
            "streams": len(runs),
            "noticed": len(late),
            "within_256": sum(delay <= 256 for delay in late),
            "median_delay": float(np.median(late)) if late else None,
            "accuracy": float(scores["right"].mean()),
        }
    return table


def coverage(kinds: dict[str, Any], windows: int = 200) -> float:
    """Return how often the interval of a window of 256 well samples covers its accuracy."""
    generator, hits = np.random.default_rng(2), []
    well = [scores for group, scores in kinds.values() if group == "well"]
    for i in range(windows):
        part = drawn(well[i % len(well)], 256, generator)
        estimate = estimate_accuracy(part["accuracy"])
        hits.append(estimate.low <= part["right"].mean() <= estimate.high)
    return float(np.mean(hits))


def latency(n: int = 20) -> dict[str, float]:
    """Return milliseconds a picture at batch 1: the network alone, calibrated, and watched."""
    model, image = sicl.load_model("demo"), torch.rand(1, 3, 32, 32)
    runs: dict[str, Callable[[torch.Tensor], Any]] = {"network": torch.no_grad()(model)}
    for name, calibrator in (("softmax", sicl.Softmax()), ("sicl", sicl.SICL())):
        runs[name] = calibrator.attach(model)
        runs[f"{name}, watched"] = sicl.Monitor(window=16).attach(calibrator.attach(model))
    found = {}
    for name, run in runs.items():
        for _ in range(20):
            run(image)
        times = []
        for _ in range(n):
            start = time.perf_counter()
            run(image)
            times.append(time.perf_counter() - start)
        found[name] = round(1000 * float(np.median(times)), 2)
    return found


def main() -> None:
    """Measure, print, and write the numbers where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=384, help="images of each kind")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--calibrator", default="pseudocal", choices=("softmax", "pseudocal", "sicl"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    calibrator = {"softmax": sicl.Softmax, "pseudocal": sicl.PseudoCal, "sicl": sicl.SICL}[
        options.calibrator
    ]()
    data = load_dataset("demo")
    pixels, labels = data.images[np.arange(options.n)], data.labels[: options.n]
    kinds, limits = {}, {}
    for name, (group, make) in conditions(pixels).items():
        scores, limits = predict(calibrator, make(), labels)
        kinds[name] = (group, scores)
    numbers = {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "calibrator": options.calibrator,
        "alarms": alarms(kinds, limits, options.streams),
        "interval_covers": coverage(kinds),
        "sets_at_90": {
            name: round(float(np.mean([s[name].mean() for group, s in kinds.values() if group == "well"])), 3)
            for name in ("covered", "size")
        },
        "milliseconds_at_batch_1": latency(),
    }
    print(json.dumps(numbers, indent=1))
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
