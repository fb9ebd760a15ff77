"""Measure the benchmark runner: its overhead, how a 1,000-cell plan starts and reports, and two workers.

    python benchmarks/runner.py

On a machine with two idle cores. Claims: overhead < 2 % of a cell's compute; a 1,000-cell plan starts in < 2 s and
reports in < 10 s; two workers finish at least 1.6 x as many cells a minute as one.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import torch
from rich.console import Console

import sicl.bench.run.run
from sicl.bench.executors import Finished, Settings
from sicl.bench.executors.base import Emit
from sicl.bench.executors.local import Processes
from sicl.bench.plan.cell import Cell
from sicl.bench.plan.plan import load_plan
from sicl.bench.report import write_report
from sicl.bench.run.live import show_summary
from sicl.bench.run.run import CellOutcome, run_cell
from sicl.bench.run.runner import run_plan
from sicl.bench.run.shelf import Shelf
from sicl.bench.run.store import Store
from sicl.calibrate import Panel
from sicl.types import Prediction

THOUSAND = """
datasets = ["demo"]
models = ["demo"]
methods = ["source", "batchnorm", "tent", "eata", "sar", "rotta", "sotta"]
calibrators = ["softmax", "temperature_scaling", "mc_dropout", "transcal", "pseudocal", "sicl_paper", "sicl"]
seeds = [0, 1]
[[streams]]
name = "benign"
severity = [1, 2, 3, 4, 5]
"""


def plan_table(cells: int, n: int) -> dict[str, object]:
    """Return a plan of `cells` equal cells: TENT and SICL on the demonstration model."""
    return {
        "datasets": ["demo"],
        "models": ["demo"],
        "methods": ["tent"],
        "calibrators": ["softmax", "sicl"],
        "streams": [{"name": "benign", "corruptions": ["contrast"], "n": n}],
        "seeds": list(range(cells)),
    }


def timed(function: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds a call takes."""
    start = clock()
    function()
    return clock() - start


class Warm:
    """This process as an executor, with what the bare loop has loaded already."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def run(self, cells: Sequence[Cell], settings: Settings, emit: Emit) -> None:
        """Run the cells with progress, as `Inline` does."""
        for cell in cells:
            emit(Finished(cell, 0, run_cell(cell, self.shelf, on_batch=lambda progress: None)))


class Timed(Panel):
    """A panel that adds up its own CPU seconds."""

    spent = 0.0

    def __call__(self, images: torch.Tensor) -> dict[str, Prediction]:
        """Adapt, predict and calibrate one batch."""
        start = time.process_time()
        out = super().__call__(images)
        Timed.spent += time.process_time() - start
        return out


def overhead(n: int, repeats: int) -> dict[str, float]:
    """Return all that a run does outside adapting, predicting and calibrating, in CPU seconds.

    Plan, folder, loading from the shelf, reading batches, metrics and record count as overhead.
    """
    plan, shelf = load_plan(plan_table(1, n)), Shelf()
    sicl.bench.run.run.Panel = Timed  # type: ignore[misc]
    outside, compute = [], []
    for _ in range(repeats + 1):
        Timed.spent = 0.0
        with tempfile.TemporaryDirectory() as folder:
            whole = timed(lambda: run_plan(plan, folder, executor=Warm(shelf)), time.process_time)
        outside.append(whole - Timed.spent)
        compute.append(Timed.spent)
    # The first run loads model and data, once for all cells.
    shares = [100 * a / b for a, b in zip(outside[1:], compute[1:])]
    return {
        "compute_cpu_s": median(compute[1:]),
        "overhead_cpu_s": median(outside[1:]),
        "overhead_percent": median(shares),
    }


def start(repeats: int) -> dict[str, float]:
    """Time `sicl bench PLAN --dry-run` as a whole on 1,050 cells."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.toml"
        path.write_text(THOUSAND)
        command = [sys.executable, "-m", "sicl.cli", "bench", str(path), "--dry-run"]
        times = [
            timed(lambda: subprocess.run(command, check=True, capture_output=True)) for _ in range(repeats)
        ]
    return {"dry_run_s": median(times), "cells": 1050}


def report(repeats: int) -> dict[str, float]:
    """Time reading 1,050 records (seven calibrators each) and writing the report."""

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.toml"
        path.write_text(THOUSAND)
        plan = load_plan(path)
        stream = {"name": "benign", "corruptions": ["fog"], "n": 512}
        table = {
            **plan.table,
            "methods": ["source"],
            "seeds": [0],
            "calibrators": ["softmax"],
            "streams": [stream],
        }
        record = run_cell(load_plan(table).cells[0]).record
        rows = dict.fromkeys(plan.cells[0].spec["calibrators"], record.calibrators["softmax"])
        for cell in plan.cells:
            made = replace(record, **cell.identity, calibrators=rows, spec=dict(cell.spec))
            Store(folder).write(cell, CellOutcome(made))

        def whole() -> None:
            result = run_plan(plan, folder)
            show_summary(result, Console(file=io.StringIO()))
            write_report(result.records, Path(folder) / "report.html")

        times = [timed(whole) for _ in range(repeats)]
    return {"report_s": median(times), "cells": len(plan)}


def workers(cells: int, n: int) -> dict[str, float]:
    """Compare one and two worker processes, start-up included, one thread each."""
    plan, rates = load_plan(plan_table(cells, n)), {}
    for count in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            run_plan(plan, folder, executor=Processes(workers=count), settings=Settings(threads=1))
            rates[count] = 60 * cells / (time.perf_counter() - start)
    return {
        "one_worker_cells_a_minute": rates[1],
        "two_workers_cells_a_minute": rates[2],
        "speed_up": rates[2] / rates[1],
    }


def main() -> None:
    """Run the measurements asked for and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("overhead", "start", "report", "workers"))
    parser.add_argument("--cells", type=int, default=12, help="cells for the comparison of workers")
    parser.add_argument("--n", type=int, default=384, help="images a cell")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    parts: dict[str, Callable[[], dict[str, float]]] = {
        "overhead": lambda: overhead(options.n, options.repeats),
        "start": lambda: start(options.repeats),
        "report": lambda: report(options.repeats),
        "workers": lambda: workers(options.cells, options.n),
    }
    chosen = [options.only] if options.only else list(parts)
    out: dict[str, object] = {name: parts[name]() for name in chosen}
    out["hardware"] = f"{platform.machine()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
    out["versions"] = f"Python {platform.python_version()}, torch {torch.__version__}"
    out["n"] = {"cells": options.cells, "images a cell": options.n, "repeats": options.repeats}
    sys.stdout.write(json.dumps(out, indent=1) + "\n")


if __name__ == "__main__":
    main()
