"""The studies under `benchmarks/`, run as a reader would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def study(name: str, *arguments: str | Path) -> str:
    """Run a study's command and return what it printed."""
    command = [sys.executable, str(ROOT / "benchmarks" / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_study_of_promised_risk_reads_committed_records(tmp_path: Path) -> None:
    """A row a calibrator; the softmax of an adapting network breaks its promise more than SICL does."""
    numbers, picture = tmp_path / "risk.json", tmp_path / "risk.svg"
    table = study("risk.py", ROOT / "results" / "demo-benign.jsonl.xz", "--json", numbers, "--svg", picture)
    rows = {(row["calibrator"], row["caution"] > 1): row for row in json.loads(numbers.read_text())}
    assert rows["softmax", False]["0.1"]["realised"] > rows["sicl", False]["0.1"]["realised"]
    assert rows["sicl", True]["0.1"]["kept"] >= rows["sicl", False]["0.1"]["kept"]
    assert len(table.splitlines()) == 2 + len(rows)
    assert picture.read_text().startswith("<svg")
