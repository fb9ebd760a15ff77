"""Claim: the information in predictions shows, without labels, whose norm statistics fit the stream.

For each stream, of the network by its own running statistics and by those of each batch: accuracy, and how many
classes the predictions tell apart, exp(H(mean p) - mean H(p)).

Run: python benchmarks/information.py [--model demo] [--n 640]
"""

from __future__ import annotations

import argparse
import platform

import torch

import sicl
from sicl.adapt import Method
from sicl.calibrate.sicl.information import information
from sicl.corruptions import VALIDATION_CORRUPTIONS
from sicl.data import load_dataset
from sicl.streams import Benign

METHODS = {"own": sicl.Source(), "batch": sicl.BatchNorm()}


def told_apart(model: torch.nn.Module, method: Method, stream: Benign) -> tuple[float, float]:
    """Return accuracy and the number of classes that predictions on a stream tell apart."""
    adapter = method.attach(model)
    right, probabilities = [], []
    for batch in stream.open(load_dataset("demo")):
        logits = adapter(batch.images)
        right.append(logits.argmax(dim=1) == batch.labels)
        probabilities.append(logits.softmax(dim=1))
    return float(torch.cat(right).float().mean()), float(information(torch.cat(probabilities)).exp())


def main() -> None:
    """Print a row a stream."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo")
    parser.add_argument("--n", type=int, default=640, help="images a stream")
    options = parser.parse_args()
    model, agree, streams = sicl.load_model(options.model), 0, 0
    print("| stream | own: accuracy | classes | batch: accuracy | classes |\n| --- | --- | --- | --- | --- |")
    for name in ("clean", *VALIDATION_CORRUPTIONS):
        for severity in (5,) if name == "clean" else (1, 3, 5):
            stream = Benign(corruption=name, severity=severity, n=options.n)
            own, batch = (told_apart(model, method, stream) for method in METHODS.values())
            cells = (f"{100 * own[0]:.1f}", f"{own[1]:.2f}", f"{100 * batch[0]:.1f}", f"{batch[1]:.2f}")
            print(f"| {name} {severity if name != 'clean' else ''} | {' | '.join(cells)} |")
            agree, streams = agree + ((own[0] >= batch[0]) == (own[1] >= batch[1])), streams + 1
    print(
        f"The better statistics tell more classes apart in {agree} of {streams} streams of {options.n} images."
    )
    print(f"{platform.machine()}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
