"""The plans of the methods' table are sound, and its figure is drawn from records."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sicl.bench.plan.plan import load_plan
from sicl.bench.tables.names import METHODS

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "results" / "demo-before.jsonl.xz"


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "results" / "methods.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_figure_has_a_dot_for_each_method_and_calibrator(tmp_path: Path) -> None:
    """And the table a row for each method, with the means that the tips say."""
    done = run(RECORDS, "--out", tmp_path / "methods.svg")
    assert done.returncode == 0, done.stderr
    rows = [line for line in done.stdout.splitlines() if "Demo" in line]
    assert {line.split("|")[4].strip() for line in rows} == {"TENT", "EATA", "SAR", "RoTTA", "SoTTA"}
    drawn = (tmp_path / "methods.svg").read_text()
    assert drawn.count("over 4 of 4 cells") == 5 * (rows[0].count("(") or 1)
    assert [path.name for path in tmp_path.iterdir()] == ["methods.svg"]


def test_a_folder_without_records_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """The next action is in it."""
    done = run(tmp_path)
    assert done.returncode == 2
    assert "Run a benchmark into it first" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", ["methods", "methods-vit", "methods-imagenet"])
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
