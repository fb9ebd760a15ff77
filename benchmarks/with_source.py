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
from sicl.corruptions import CORRUPTIONS
from sicl.data import Dataset, load_dataset, source_data
from sicl.metrics import auroc, expected_calibration_error
from sicl.streams import Benign, Stream

METHODS: dict[str, Method] = {"fixed": sicl.Source(), "TENT": sicl.Tent(predict="after")}
EVERY = 4


def played(panel: sicl.Panel, stream: Stream, data: Dataset, device: str) -> dict[str, list[float]]:
    """Return accuracy, and ECE and AUROC of each calibrator, on a stream from its start."""
    panel.reset()
    batches = [(panel(b.images), b.labels) for b in stream.open(data, device=torch.device(device))]
    found = {}
    for name in batches[0][0]:
        right = torch.cat([out[name].labels == labels for out, labels in batches]).cpu()
        said = torch.cat([out[name].confidence for out, _ in batches]).cpu()
        found[name] = [
            float(right.float().mean()),
            expected_calibration_error(said, right),
            auroc(said, right),
        ]
    return found


def row(stream: str, found: list[dict[str, list[float]]]) -> str:
    """Return means over streams in %, as a row of the table."""
    accuracy = fmean(each["softmax"][0] for each in found)
    cells = [
        f"{100 * fmean(each[name][1] for each in found):.1f} ({100 * fmean(each[name][2] for each in found):.1f})"
        for name in found[0]
    ]
    return f"| {stream}, {len(found)} | {100 * accuracy:.1f} | {' | '.join(cells)} |"


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
    n = min(options.n, len(rest))
    # Graphs cost seconds to capture, which short streams do not pay back.
    asked = {
        "softmax": sicl.Softmax(),
        "sicl": sicl.SICL(engine="twin"),
        "source": sicl.SICL(engine="twin", fitted=True),
    }
    seconds = []
    print("| stream | accuracy | softmax | SICL | SICL, `source=` |\n| --- | --- | --- | --- | --- |")
    for name in options.methods.split(","):
        started = time.perf_counter()
        panel = sicl.Panel(asked, METHODS[name].attach(model), source=source)
        seconds.append(f"{name} {time.perf_counter() - started:.1f} s")
        streams = {f"{name}, clean": [Benign(corruption="clean", n=n)]}
        for severity in map(int, options.severities.split(",")):
            streams[f"{name}, severity {severity}"] = [
                Benign(corruption=c, severity=severity, n=n) for c in options.corruptions.split(",")
            ]
        for stream, each in streams.items():
            print(row(stream, [played(panel, s, rest, options.device) for s in each]), flush=True)
    print(f"Attached and fitted on {len(source)} images: {', '.join(seconds)}.")
    print(
        f"ECE (AUROC) in %, {n} images a stream; {options.device}, {platform.machine()}, torch {torch.__version__}"
    )


if __name__ == "__main__":
    main()
