"""Claim: SICL does no harm on streams that hold only some of the classes a network knows.

A network that knows ten classes and is shown two, as most are once deployed: by the statistics of such batches, and on
repaired pictures, it strays to classes that are not there. Images of K classes in a row, shuffled, in batches of 64.

Run: python benchmarks/few_classes.py [--n 256] [--first 0] [--model demo] [--dataset demo] [--data DIR]
"""

from __future__ import annotations

import argparse
import platform

import numpy as np
import torch

import sicl
from sicl.adapt import Method
from sicl.data import Dataset, load_dataset
from sicl.metrics import auroc, expected_calibration_error
from sicl.streams import Benign

METHODS: dict[str, Method] = {"fixed": sicl.Source(), "TENT": sicl.Tent(), "RoTTA": sicl.Rotta()}
SHARES = (0.1, 0.2, 0.5, 1.0)


def measured(model: torch.nn.Module, method: Method, data: Dataset, corruption: str, n: int) -> str:
    """Return accuracy, and ECE (AUROC) of the softmax and of SICL, as cells of a table."""
    panel = sicl.Panel({"softmax": sicl.Softmax(), "sicl": sicl.SICL(engine="twin")}, method.attach(model))
    right, kinds = [], {name: [] for name in ("softmax", "sicl")}
    for batch in Benign(corruption=corruption, severity=5, n=min(n, len(data))).open(data):
        out = panel(batch.images)
        right.append(out["softmax"].labels == batch.labels)
        for name, confidences in kinds.items():
            confidences.append(out[name].confidence)
    correct = torch.cat(right)
    cells = [f"{100 * correct.float().mean():.1f}"]
    for confidences in kinds.values():
        confidence = torch.cat(confidences)
        ece, ranks = expected_calibration_error(confidence, correct), auroc(confidence, correct)
        cells.append(f"{100 * ece:.1f} ({100 * ranks:.1f})")
    return " | ".join(cells)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=256, help="images a stream")
    parser.add_argument("--first", type=int, default=0, help="the first of the K classes")
    parser.add_argument("--model", default="demo", help="as `load_model` takes it")
    parser.add_argument("--dataset", default="demo", help="as `load_dataset` takes it")
    parser.add_argument("--data", help="the folder of data sets")
    options = parser.parse_args()
    model, data = sicl.load_model(options.model), load_dataset(options.dataset, options.data)
    print("| stream | classes | method | accuracy | softmax | SICL |\n| --- | --- | --- | --- | --- | --- |")
    for corruption in ("clean", "speckle_noise"):
        for share in SHARES:
            classes = max(1, round(share * data.n_classes))
            some = data.subset(np.flatnonzero((data.labels - options.first) % data.n_classes < classes))
            for name, method in METHODS.items():
                found = measured(model, method, some, corruption, options.n)
                print(f"| {corruption} | {classes} of {data.n_classes} | {name} | {found} |", flush=True)
    print(f"ECE (AUROC) in %, {options.n} images a stream; {platform.machine()}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
