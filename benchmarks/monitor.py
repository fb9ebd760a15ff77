"""How soon the monitor notices trouble, how often it is wrong, what its interval covers, and what it costs.

    python benchmarks/monitor.py [--calibrator sicl] [--method source] [--n 768] [--streams 200] [--json FILE]

The embedded network predicts clean images, the fifteen corruptions at severity 1 and images it does not know (line
drawings made of the pictures, inverted pictures, noise, contrast at severity 5), each once, as a stream of its own in
batches of 64, watched with held-out images as the reference. Streams are then drawn from these batches with
replacement; what is drawn is a batch with its 64 scores as they stood, so samples stay beside their neighbours, and
only the order of batches is new. Well streams are 2,048 samples of clean images, of one corruption at severity 1, or
of all of these in turn; others turn strange after 512. A corruption at severity 1 on which the network falls below two
thirds of its accuracy is counted as trouble, not as well. Takes about three minutes of one core.
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
from sicl.adapt import METHODS
from sicl.calibrate import CALIBRATORS
from sicl.corruptions import CORRUPTIONS, corrupt
from sicl.data import load_dataset, source_data
from sicl.monitor import Detector, Monitored
from sicl.monitor.window import estimate_accuracy

BATCH, LENGTH, TURN = 64, 2048, 512
Scores = dict[str, np.ndarray]
"""By claim or column: batches x samples."""


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


def watched(calibrator: Any, method: str) -> Monitored:
    """Return a monitor that never forgets and never alarms: its window is what is wanted."""
    spec = sicl.Monitor(window=100_000, false_alarms=1e-30)
    trusted = calibrator.attach(METHODS[method].for_dataset("demo").attach(sicl.load_model("demo")))
    return spec.attach(trusted, source=source_data(load_dataset("demo", split="val"), n=512))


def predict(monitored: Monitored, pixels: np.ndarray, labels: np.ndarray) -> Scores:
    """Return the scores of one kind of image, batch by batch."""
    monitored.reset()
    told: dict[str, list[np.ndarray]] = {"right": [], "covered": [], "size": []}
    for start in range(0, len(pixels), BATCH):
        out = monitored(as_images(pixels[start : start + BATCH]))
        truth = labels[start : start + BATCH]
        sets = out.sets(coverage=0.9).numpy()
        told["right"].append(out.labels.numpy() == truth)
        told["covered"].append(sets[np.arange(len(truth)), truth])
        told["size"].append(sets.sum(axis=1))
    kept = monitored.window.columns
    scores = {"accuracy": kept["confidence"], "familiarity": kept["familiarity"]}
    if "collapse" in kept:
        scores["collapse"] = 1 - kept["collapse"]
    scores |= {name: np.concatenate(parts) for name, parts in told.items()}
    return {name: column.reshape(-1, BATCH) for name, column in scores.items()}


def alarm(parts: list[Scores], limits: dict[str, float]) -> int | None:
    """Return the sample at which a stream made of these parts alarms."""
    claims = [name for name in ("accuracy", "familiarity", "collapse") if name in parts[0]]
    scores = {name: np.concatenate([part[name] for part in parts]) for name in claims}
    return Detector(sicl.Monitor().false_alarms).add(scores, limits)


def drawn(scores: Scores, n: int, generator: np.random.Generator) -> Scores:
    """Return n samples: whole batches, drawn with replacement."""
    chosen = generator.integers(0, len(scores["right"]), n // BATCH)
    return {name: column[chosen].ravel() for name, column in scores.items()}


def well_kinds(kinds: dict[str, Any]) -> dict[str, Scores]:
    """Return the kinds that are well, and all of them in turn."""
    floor = 2 / 3 * kinds["clean"][1]["right"].mean()
    well = {n: s for n, (group, s) in kinds.items() if group == "well" and s["right"].mean() >= floor}
    return {**well, "all": {c: np.concatenate([s[c] for s in well.values()]) for c in well["clean"]}}


def alarms(kinds: dict[str, Any], limits: dict[str, float], streams: int) -> dict[str, Any]:
    """Return false alarms over well streams, and delays over those that turn strange."""
    generator, well = np.random.default_rng(1), well_kinds(kinds)
    names = list(well)
    false = [
        name
        for name in (names[i % len(names)] for i in range(streams))
        if alarm([drawn(well[name], LENGTH, generator)], limits) is not None
    ]
    table: dict[str, Any] = {
        "well": {"streams": streams, "samples": LENGTH * streams, "false_alarms": len(false), "in": false}
    }
    strange = {name: scores for name, (_, scores) in kinds.items() if name not in well}
    for name, scores in strange.items():
        runs = [
            alarm(
                [drawn(well[names[i % len(names)]], TURN, generator), drawn(scores, 2 * TURN, generator)],
                limits,
            )
            for i in range(max(1, streams // len(strange)))
        ]
        late = [run - TURN + 1 for run in runs if run is not None and run >= TURN]
        table[name] = {
            "streams": len(runs),
            "noticed": len(late),
            "within_256": sum(delay <= 256 for delay in late),
            "median_delay": float(np.median(late)) if late else None,
            "accuracy": float(scores["right"].mean()),
        }
    return table


def coverage(kinds: dict[str, Any], windows: int = 200) -> dict[str, float]:
    """Return how often the interval of a window of 256 well samples covers its accuracy, and its half width."""
    generator, hits, widths = np.random.default_rng(2), [], []
    well = [scores for group, scores in kinds.values() if group == "well"]
    for i in range(windows):
        part = drawn(well[i % len(well)], 256, generator)
        estimate = estimate_accuracy(part["accuracy"])
        hits.append(estimate.low <= part["right"].mean() <= estimate.high)
        widths.append((estimate.high - estimate.low) / 2)
    return {"covers": float(np.mean(hits)), "half_width": float(np.mean(widths))}


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
    parser.add_argument("--calibrator", default="sicl", choices=CALIBRATORS)
    parser.add_argument("--method", default="source", choices=METHODS)
    parser.add_argument("--n", type=int, default=768, help="images of each kind")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    begun = time.perf_counter()
    data, n = load_dataset("demo"), options.n - options.n % BATCH
    chosen = np.random.default_rng(0).permutation(len(data))[:n]
    pixels, labels = data.images[chosen], data.labels[chosen]
    monitored = watched(CALIBRATORS[options.calibrator](), options.method)
    kinds = {
        name: (group, predict(monitored, make(), labels))
        for name, (group, make) in conditions(pixels).items()
    }
    numbers = {
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}",
        "calibrator": options.calibrator,
        "method": options.method,
        "images of each kind": n,
        "alarms": alarms(kinds, monitored.limits, options.streams),
        "interval": coverage(kinds),
        "sets_at_90": {
            name: round(float(np.mean([s[name].mean() for group, s in kinds.values() if group == "well"])), 3)
            for name in ("covered", "size")
        },
        "milliseconds_at_batch_1": latency(),
        "seconds": round(time.perf_counter() - begun),
    }
    print(json.dumps(numbers, indent=1))
    if options.json:
        options.json.write_text(json.dumps(numbers, indent=1))


if __name__ == "__main__":
    main()
