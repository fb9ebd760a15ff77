"""The demo: an adapting classifier's confidence going wrong, and what each calibrator makes of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sicl.bench.plan.plan import BenchPlan, load_plan
from sicl.bench.plan.registry import known
from sicl.bench.run.live import show_failures
from sicl.bench.run.record import Record
from sicl.bench.run.runner import Result
from sicl.bench.tables.names import METRICS, calibrator_name, method_name
from sicl.bench.tables.summary import calibrators_of, mean_accuracy, mean_metric, mean_percent, winners
from sicl.data.files import write_atomic

SHOWN = ("gaussian_noise", "defocus_blur", "contrast", "jpeg_compression")
"""A corruption of each category."""

COLUMNS = ("ece", "brier", "auroc")


def demo_plan(*, method: str, corruptions: Sequence[str], calibrators: Sequence[str], n: int) -> BenchPlan:
    """Return the demo's cells: one a corruption, on the embedded model and images; nothing named means the usual."""
    stream = {"name": "benign", "corruption": list(corruptions or SHOWN), "severity": 5, "n": n}
    return load_plan(
        {
            "name": "sicl demo",
            "predict": "after",
            "datasets": [{"name": "demo"}],
            "models": [{"name": "demo"}],
            "methods": [{"name": method}],
            "calibrators": [{"name": name} for name in calibrators or known("calibrator")],
            "streams": [stream],
        }
    )


def title(method: str) -> str:
    """Return the report's heading."""
    return f"{method_name(method)} on corrupted CIFAR-10: can its confidence be trusted?"


def summary(records: Sequence[Record]) -> dict[str, dict[str, float | None]]:
    """Return accuracy, ECE, Brier score and AUROC of each calibrator, in percent, as means; None if unknown."""
    known = mean_accuracy(records).value
    accuracy = {"accuracy": None if known is None else 100 * known}
    return {
        name: {**accuracy, **{METRICS[key].title: mean_percent(records, name, key) for key in COLUMNS}}
        for name in calibrators_of(records)
    }


def write_summary(records: Sequence[Record], folder: Path) -> Path:
    """Write `results.json` beside the records."""
    text = json.dumps({"summary": summary(records)}, indent=1, allow_nan=False)
    return write_atomic(folder / "results.json", text + "\n")


def show_demo(result: Result, console: Console) -> None:
    """Print the summary, the best of each column marked."""
    rows = summary(result.records)
    table = Table(title="How far can the confidence be trusted?", title_justify="left")
    table.add_column("confidence from")
    metrics = [METRICS[key] for key in COLUMNS]
    for head in ("accuracy %", *(f"{metric.title} %" for metric in metrics)):
        table.add_column(head, justify="right")
    best = {
        metric.title: winners({n: mean_metric(result.records, n, metric.key).value for n in rows}, metric)
        for metric in metrics
    }
    for name, row in rows.items():
        cells = [
            Text("-" if value is None else f"{value:.1f}", "bold green" if name in best.get(key, ()) else "")
            for key, value in row.items()
        ]
        table.add_row(Text(calibrator_name(name)), *cells)
    console.print(table)
    done = [record for record in result.records if record.status == "done"]
    if done:
        over = f"Mean over {len(done)} of {len(result.records)} corruptions of {done[0].n} images each"
        console.print(f"{over}, severity 5, seed 0.")
    show_failures(result, console)
