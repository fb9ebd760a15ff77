"""The plans of the methods' table are sound, and its figure is drawn from records."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from sicl.bench.plan.plan import load_plan
from sicl.bench.run.schema import Record
from sicl.bench.tables.names import METHODS

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("methods_script", ROOT / "results" / "methods.py")
assert _spec is not None
assert _spec.loader is not None
script = importlib.util.module_from_spec(_spec)
sys.modules["methods_script"] = script
_spec.loader.exec_module(script)
RECORDS = ROOT / "results" / "demo-before.jsonl.xz"


def run(*arguments: str | Path, script: str = "results/methods.py") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / script), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_figure_has_a_dot_for_each_method_and_calibrator(tmp_path: Path) -> None:
    """And the table a row for each method, with the means that the tips say."""
    done = run(RECORDS, "--out", tmp_path / "methods.svg")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    rows = [line for line in lines if " in all |" in line]
    assert [line.split("|")[1].strip() for line in rows] == ["TENT", "EATA", "SAR", "RoTTA", "SoTTA"]
    assert lines[0] == "**Demo, benign**"
    assert lines[-1] == "demo-before.jsonl.xz: 20 of 20 planned cells."
    drawn = (tmp_path / "methods.svg").read_text()
    assert drawn.count("over 4 of 4 cells") == 5 * rows[0].count("(")
    assert [path.name for path in tmp_path.iterdir()] == ["methods.svg"]


def test_the_benchmark_of_costs_runs(tmp_path: Path) -> None:
    """A row for each contender in the table and the file, and CoTTA's views at four sizes."""
    small = ("--rounds", "1", "--batch", "2", "--out", tmp_path / "cost.json")
    done = run(*small, "--methods", "lame", script="benchmarks/adapters.py")
    assert "lame" in done.stdout, done.stderr
    assert json.loads((tmp_path / "cost.json").read_text())["over_tent"].keys() == {
        "minimal loop",
        "tent",
        "lame",
    }
    done = run(*small, "--views", script="benchmarks/adapters.py")
    assert done.stdout.count("of 32 views at once: milliseconds") == 4, done.stderr


def test_a_folder_without_records_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """The next action is in it."""
    done = run(tmp_path)
    assert done.returncode == 2
    assert "Run a benchmark into it first" in done.stderr.splitlines()[-1]


def test_a_calibrator_recorded_apart_joins_the_others_of_its_method() -> None:
    """Two plans over the same cells make one panel; parts that were timed apart are told apart."""
    cell = {"dataset": "demo", "model": "demo", "method": "come", "stream": "benign", "seed": 0, "n": 128}
    numbers = {"accuracy": 0.5, "ece": 0.1, "auroc": 0.8}
    records = [
        Record(
            **cell,
            calibrators={name: numbers},
            spec={"calibrators": {name: {}}},
            timing={"run_s": 3.0, "adapt_s": 2.0, "calibrate_s": {name: 1.0}},
        )
        for name in ("softmax", "sicl")
    ]
    failed = Record(**cell, status="failed", error="lost", spec={"calibrators": {"sicl": {}}})
    (dots,) = script.panels([*records, failed]).values()
    assert [(dot.calibrator, dot.cells, dot.total) for dot in dots] == [("softmax", 1, 1), ("sicl", 1, 2)]
    assert dots[1].adapting == 1000
    assert dots[1].calibrating == 500
    row = "| COME | 1 | 50.0 | **10.0 (80.0)** | **10.0 (80.0)** | 1000 | 500 |"
    assert row in script.tables({("demo", "demo", "benign"): dots})


@pytest.mark.parametrize("name", ["methods", "methods-cpu", "methods-demo"])
def test_the_plans_name_every_method_of_today(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whatever their weights; only missing weights may be wrong with them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    for file in ("cifar10-resnet18", "cifar100-resnet18", "cifar10-vit_tiny128", "imagenet-vit_tiny"):
        (tmp_path / "weights" / f"{file}.safetensors").touch()
    plan = load_plan(ROOT / "results" / "plans" / f"{name}.toml")
    methods = {cell.identity["method"] for cell in plan.cells}
    assert {"tent", "come", "sar", "deyo", "cotta", "roid", "lame"} <= methods
    assert methods <= METHODS.keys()
