"""The demo: an adapting classifier's confidence going wrong, and what each calibrator makes of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from sicl.bench.plan.plan import Plan, load_plan
from sicl.bench.report import write_report
from sicl.bench.run.files import write_atomic
from sicl.bench.run.record import Record
from sicl.bench.run.run import Progress, run_cell
from sicl.bench.run.shelf import Shelf
from sicl.errors import SiclError

CORRUPTIONS = ("gaussian_noise", "defocus_blur", "contrast", "jpeg_compression")
CALIBRATORS = ("softmax", "temperature_scaling", "mc_dropout", "transcal", "pseudocal", "sicl")
COLUMNS = {"ece": "ECE", "brier": "Brier", "auroc": "AUROC"}
TITLE = "TENT on corrupted CIFAR-10: can its confidence be trusted?"

OnBatch = Callable[[str, Progress], None]


def demo_plan(*, method: str, corruptions: Sequence[str], calibrators: Sequence[str], n: int) -> Plan:
    """Return the demo's cells: one a corruption, on the embedded model and images."""
    stream = {"name": "benign", "corruption": list(corruptions), "severity": 5, "n": n}
    return load_plan(
        {
            "name": "sicl demo",
            "predict": "after",
            "datasets": [{"name": "demo"}],
            "models": [{"name": "demo"}],
            "methods": [{"name": method}],
            "calibrators": [{"name": name} for name in calibrators],
            "streams": [stream],
        }
    )


def run_demo(plan: Plan, *, device: str = "cpu", on_batch: OnBatch | None = None) -> list[Record]:
    """Run the cells one after the other.

    Raises:
        SiclError: a cell failed; the message is its error.
    """
    shelf = Shelf(device=device)
    records = []
    for cell in plan.cells:
        name = str(cell.identity["corruption"])
        watch = None if on_batch is None else lambda progress, name=name: on_batch(name, progress)
        record = run_cell(cell, shelf, on_batch=watch).record
        if record.status == "failed":
            raise SiclError(f"The demo failed on {name}: {record.error}")
        records.append(record)
    return records


def summary(records: Sequence[Record]) -> dict[str, dict[str, float]]:
    """Return accuracy, ECE, Brier score and AUROC of each calibrator, in percent, as means over the records."""
    accuracy = sum(record.accuracy or 0.0 for record in records) / len(records)
    table = {}
    for name in records[0].calibrators:
        means = {
            column: 100 * sum(record.calibrators[name][key] for record in records) / len(records)
            for key, column in COLUMNS.items()
        }
        table[name] = {"accuracy": 100 * accuracy, **means}
    return table


def write_demo(records: Sequence[Record], folder: Path) -> tuple[Path, Path]:
    """Write `report.html` and `results.json`, each complete or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    results = {"summary": summary(records), "records": [asdict(record) for record in records]}
    page = write_report(list(records), folder / "report.html", title=TITLE)
    return page, write_atomic(folder / "results.json", json.dumps(results, indent=1, allow_nan=False) + "\n")
