"""Claim: labelled source images help where the default is not enough: under heavy damage.

Every fourth image of a labelled set is source data; the others are the stream: clean, and under each of the fifteen
corruptions, on which the map is not fitted. The map is fitted once a method, and the stream starts anew each time.

Run: python benchmarks/with_source.py --model weights/imagenet-vit_tiny.safetensors --dataset imagenet:1k --data DIR
     [--methods fixed,TENT] [--severities 3,5] [--n 704] [--corruptions fog,contrast] [--device cuda]
"""

from __future__ import annotations

import argparse
import platform
import time
from statistics import fmean

import numpy as np
import torch

import sicl
from sicl.adapt import Method
from sicl.calibrate import Calibrated
from sicl.corruptions import CORRUPTIONS
from sicl.data import Dataset, load_dataset, source_data
from sicl.metrics import auroc, expected_calibration_error
from sicl.streams import Benign, Stream

METHODS: dict[str, Method] = {"fixed": sicl.Source(), "TENT": sicl.Tent(predict="after")}
EVERY = 4


def played(live: dict[str, Calibrated], stream: Stream, data: Dataset, device: str) -> dict[str, list[float]]:
    """Return accuracy, and ECE and AUROC of each, on a stream from its start."""
    found: dict[str, list[float]] = {}
    for name, trusted in live.items():
        trusted.reset()
        right, confidence = [], []
        for batch in stream.open(data, device=torch.device(device)):
            out = trusted(batch.images)
            right.append(out.labels == batch.labels)
            confidence.append(out.confidence)
        correct, said = torch.cat(right).cpu(), torch.cat(confidence).cpu()
        ece, ranks = expected_calibration_error(said, correct), auroc(said, correct)
        found[name] = [float(correct.float().mean()), ece, ranks]
    return found


def table(rows: dict[str, list[dict[str, list[float]]]]) -> str:
    """Return means over streams in %, a row for each method and severity."""
    lines = ["| stream | accuracy | softmax | SICL | SICL, `source=` |", "| --- | --- | --- | --- | --- |"]
    for stream, found in rows.items():
        accuracy = fmean(each["softmax"][0] for each in found)
        cells = [
            f"{100 * fmean(each[name][1] for each in found):.1f} "
            f"({100 * fmean(each[name][2] for each in found):.1f})"
            for name in found[0]
        ]
        lines.append(f"| {stream}, {len(found)} | {100 * accuracy:.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="as `load_model` takes it")
    parser.add_argument("--dataset", default="demo", help="as `load_dataset` takes it")
    parser.add_argument("--data", help="the folder of data sets")
    parser.add_argument("--methods", default="fixed,TENT")
    parser.add_argument("--severities", default="3,5")
    parser.add_argument("--corruptions", default=",".join(CORRUPTIONS))
    parser.add_argument("--n", type=int, default=704, help="images a stream")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    data = load_dataset(options.dataset, options.data)
    numbers = np.arange(len(data))
    source = source_data(data.subset(numbers[numbers % EVERY == 0]), device=options.device)
    rest = data.subset(numbers[numbers % EVERY != 0])
    model = sicl.load_model(options.model, device=options.device)
    rows: dict[str, list[dict[str, list[float]]]] = {}
    for name in options.methods.split(","):
        # Graphs cost seconds to capture, which short streams do not pay back.
        spec, adapted = sicl.SICL(engine="twin"), METHODS[name].attach
        started = time.perf_counter()
        fitted = spec.attach(adapted(model), source=source)
        print(f"{name}: fitted on {len(source)} images in {time.perf_counter() - started:.1f} s", flush=True)
        live = {
            "softmax": sicl.Softmax().attach(adapted(model)),
            "SICL": spec.attach(adapted(model)),
            "source": fitted,
        }
        n = min(options.n, len(rest))
        rows[f"{name}, clean"] = [played(live, Benign(corruption="clean", n=n), rest, options.device)]
        for severity in map(int, options.severities.split(",")):
            streams = [Benign(corruption=c, severity=severity, n=n) for c in options.corruptions.split(",")]
            rows[f"{name}, severity {severity}"] = [
                played(live, stream, rest, options.device) for stream in streams
            ]
    print(table(rows))
    print(
        f"ECE (AUROC) in %, {n} images a stream; {options.device}, {platform.machine()}, torch {torch.__version__}"
    )


if __name__ == "__main__":
    main()
