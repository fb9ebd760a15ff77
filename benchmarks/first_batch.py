"""What the first batch after `attach` costs beside a later one, with and without `warm_up`.

    python benchmarks/first_batch.py [--model demo] [--batches 1 64] [--methods source tent] [--later 5]

Milliseconds of the processor (on a GPU: of the clock), each case in a process that has run another model before, so
that what torch does once a process is in none of them.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import time
import warnings

import numpy as np
import torch

import sicl
from sicl.adapt import METHODS


def seconds(device: str) -> float:
    """Return the time; on a CPU that of this process, which other processes do not change."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def times(trusted: sicl.calibrate.Calibrated, images: list[torch.Tensor], device: str) -> list[float]:
    """Return the milliseconds of each batch."""
    found = []
    for batch in images:
        start = seconds(device)
        trusted(batch)
        found.append(1000 * (seconds(device) - start))
    return found


def measured(options: argparse.Namespace, method: str, n: int, *, warm: bool) -> dict[str, float]:
    """Return the first batch, the median of later ones, and their ratio."""
    model = sicl.load_model(options.model, device=options.device)
    shape = (n, 3, options.size, options.size)
    images = [
        torch.rand(shape, generator=torch.Generator().manual_seed(i)).to(options.device)
        for i in range(options.later + 1)
    ]
    trusted = sicl.SICL().attach(METHODS[method]().attach(model))
    gc.collect()  # what earlier cases left behind is not this one's to clean up
    start = seconds(options.device)
    if warm:
        trusted.warm_up(shape)
    spent = 1000 * (seconds(options.device) - start)
    first, *later = times(trusted, images, options.device)
    usual = float(np.median(later))
    return {"warm_up": spent, "first": first, "later": usual, "ratio": first / usual}


def main() -> None:
    """Print one JSON line a case."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--size", type=int, default=32, help="pixels a side")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--methods", nargs="+", default=["source", "tent"], choices=METHODS)
    parser.add_argument("--later", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    measured(options, "tent", 2, warm=False)
    machine = f"{platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    for method in options.methods:
        for n in options.batches:
            for warm in (False, True):
                told = {name: round(ms, 1) for name, ms in measured(options, method, n, warm=warm).items()}
                print(
                    json.dumps({"method": method, "batch": n, "warm": warm, **told, "machine": machine}),
                    flush=True,
                )


if __name__ == "__main__":
    main()
