"""The studies under `benchmarks/`: recorded, scored and shown on a few real images, as a reader would."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "src" / "sicl" / "models" / "_embedded" / "resnet18_w16_cifar10.safetensors"


def study(name: str, *arguments: str | Path) -> str:
    """Run a study's command and return what it printed."""
    command = [sys.executable, str(ROOT / "benchmarks" / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("name", "method", "row"), [("pooled.py", "tent", "votes (SICL)")])
def test_a_study_records_scores_and_shows(tmp_path: Path, name: str, method: str, row: str) -> None:
    """Each candidate has a row, and what was recorded is not recorded again."""
    options = ["--model", f"demo={MODEL}", "--methods", method, "--streams", "speckle_noise", "--n", "64"]
    record = ["record", *options, "--out", tmp_path / "recorded"]
    assert f"demo-{method}-speckle_noise.npz" in study(name, *record)
    assert study(name, *record) == ""
    scores = tmp_path / "scores.json"
    table = study(name, "score", tmp_path / "recorded", "--json", scores)
    assert any(line.startswith(f"| {row}") for line in table.splitlines())
    assert study(name, "show", scores) == table
    assert json.loads(scores.read_text())[0]["n"] == 64


@pytest.mark.parametrize(
    ("name", "row"), [("fit", "as built"), ("levels", "all votes by the adapted network")]
)
def test_a_study_of_the_past_is_still_shown(name: str, row: str) -> None:
    """The rules are no longer part of SICL; what was recorded of them is read, and nothing more."""
    table = study(f"{name}.py", "show", ROOT / "results" / f"{name}-validation.json")
    assert any(line.startswith(f"| {row}") for line in table.splitlines())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [(["score", "nothing", "--json", "out.json"], "no recordings"), (["show", "nothing.json"], "no file")],
)
def test_a_study_without_recordings_says_so(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    """One sentence, and no file is left behind."""
    command = [sys.executable, str(ROOT / "benchmarks" / "fit.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert sentence in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_the_study_of_promised_risk_reads_committed_records(tmp_path: Path) -> None:
    """A row a calibrator; the softmax of an adapting network breaks its promise more than SICL does."""
    numbers, picture = tmp_path / "risk.json", tmp_path / "risk.svg"
    table = study("risk.py", ROOT / "results" / "demo-benign.jsonl.xz", "--json", numbers, "--svg", picture)
    rows = {(row["calibrator"], row["caution"] > 1): row for row in json.loads(numbers.read_text())}
    assert rows["softmax", False]["0.1"]["realised"] > rows["sicl", False]["0.1"]["realised"]
    assert rows["sicl", True]["0.1"]["kept"] >= rows["sicl", False]["0.1"]["kept"]
    assert len(table.splitlines()) == 2 + len(rows)
    assert picture.read_text().startswith("<svg")
