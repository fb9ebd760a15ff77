"""The studies under `benchmarks/`, run as a reader would."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import sicl
from sicl.data import load_dataset
from sicl.streams import Benign

ROOT = Path(__file__).parents[1]


def study(name: str, *arguments: str | Path) -> str:
    """Run a study's command and return what it printed."""
    command = [sys.executable, str(ROOT / "benchmarks" / name), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def weighing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The study of weighings as a module, with its neighbours at hand."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("weighing")


def test_the_study_of_promised_risk_reads_committed_records(tmp_path: Path) -> None:
    """A row a calibrator; the softmax of an adapting network breaks its promise more than SICL does."""
    numbers, picture = tmp_path / "risk.json", tmp_path / "risk.svg"
    table = study("risk.py", ROOT / "results" / "demo-benign.jsonl.xz", "--json", numbers, "--svg", picture)
    rows = {(row["calibrator"], row["delta"] is not None): row for row in json.loads(numbers.read_text())}
    assert rows["softmax", False]["0.1"]["realised"] > rows["sicl", False]["0.1"]["realised"]
    assert rows["sicl", True]["0.1"]["kept"] >= rows["sicl", False]["0.1"]["kept"]
    assert len(table.splitlines()) == 2 + len(rows)
    assert picture.read_text().startswith("<svg")


def test_the_study_of_estimates_shows_what_was_recorded(tmp_path: Path) -> None:
    """A calibrated stream is estimated well and keeps its promise, an overconfident one does not."""
    right = [1, 1, 1, 0] * 64
    said = {"softmax": [0.99] * 256, "pseudocal": [0.75] * 256, "sicl": [0.99, 0.99, 0.99, 0.03] * 64}
    sets = {name: [1] * 256 for name in said}
    row = {"method": "tent", "corruption": "fog", "severity": 5, "right": right, "aetta": [0.5] * 256}
    recorded = tmp_path / "streams.jsonl"
    recorded.write_text(json.dumps({**row, "confidence": said, "covered": sets, "size": sets}) + "\n")
    numbers = json.loads(study("estimates.py", "show", recorded, "--svg", tmp_path / "risk.svg"))["all"]
    assert [numbers[name]["estimate_error"] for name in ("softmax", "sicl", "aetta")] == [24.0, 0.0, 25.0]
    assert numbers["softmax"]["risk 0.05"]["kept"] == 0
    assert numbers["sicl"]["risk 0.05, delta 0.1"] == {
        "realised": 0.0,
        "nine_in_ten": 0.0,
        "kept": 100.0,
        "accepted": 75.0,
    }
    assert (tmp_path / "risk.svg").read_text().startswith("<svg")


def test_the_study_of_estimates_accepts_streams_while_they_come() -> None:
    """A line a batch size, with what was accepted and kept at each risk."""
    told = study(
        "estimates.py", "live", "--methods", "source", "--severities", "3", "--n", "6", "--batches", "3"
    )
    row = json.loads(told)
    assert (row["batch"], row["streams"], row["images"]) == (3, 15, 6)
    # Six pictures promise nothing.
    assert row["risk 0.05"] == {"realised": 0.0, "kept": 100.0, "accepted": 0.0}


def test_the_study_of_information_ranks_answers_without_labels(tmp_path: Path) -> None:
    """Clear answers tell right from wrong predictions better, on every stream."""
    picture = tmp_path / "information.svg"
    *rows, ranks, hardware = study("information.py", "--n", "96", "--figure", picture).splitlines()
    named = [row.split("|")[1].strip() for row in rows[2:]]
    assert "network repair0" in named
    assert len(named) == len(set(named)) == 11
    assert all(float(cell) > 0.5 for cell in ranks.strip("| ").split("|")[1:])
    assert hardware.startswith("96 images a stream")
    assert picture.read_text().startswith("<svg")


@pytest.mark.slow
def test_the_study_of_overhead_times_its_ways_more_than_once(tmp_path: Path) -> None:
    """However little time there is: a median of one would be what a first call costs."""
    numbers = tmp_path / "overhead.json"
    how = ("--cases", "resnet18:2", "--ways", "sicl default", "--seconds", "0", "--device", "cpu")
    table = study("overhead.py", *how, "--json", numbers)
    rows = json.loads(numbers.read_text())["cases"][0]["rows"]
    assert [*rows] == ["forward", "tent step", "naive", "mc dropout 20", "sicl default"]
    assert all(row["n"] >= 5 and row["ms"] > 0 for row in rows.values())
    assert "| sicl default |" in table


def test_the_study_of_weighing_pools_answers_as_sicl_does(weighing: ModuleType) -> None:
    """Its clarity, on the answers that it recorded, is the confidence of the live calibrator; other rules are not."""
    trusted = sicl.SICL().attach(sicl.load_model("demo"))
    recording = trusted.calibration.information = weighing.Recording()
    for batch in Benign(corruption="speckle_noise", n=96).open(load_dataset("demo")):
        out = trusted(batch.images)
    said = {
        name: weighing.confidence(recording.seen[-1][0], rule(recording.seen[-1][1]))
        for name, rule in weighing.RULES.items()
    }
    torch.testing.assert_close(said["clarity"], out.confidence, atol=1e-5, rtol=0)
    assert all(float((said[name] - out.confidence).abs().mean()) > 0.01 for name in ("equal", "doubt"))


@pytest.mark.parametrize("how", ["grey", "inverted", "posterised", "edges", "flattened"])
def test_redrawn_pictures_are_pictures(weighing: ModuleType, how: str) -> None:
    """Of the same shape, from 0 to 1, and others than before."""
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    made = weighing.redrawn(images, how)
    assert made.shape == images.shape
    assert float(made.min()) >= 0
    assert float(made.max()) <= 1
    assert float((made - images).abs().mean()) > 0.01


@pytest.mark.slow
def test_the_study_with_source_images_prints_a_row_a_stream() -> None:
    """Fitted on every fourth image, tried on the others."""
    printed = study(
        "with_source.py", "--n", 64, "--severities", 5, "--corruptions", "fog", "--methods", "fixed"
    )
    assert "fitted on 375 images" in printed
    assert [line.split(",")[1] for line in printed.splitlines() if line.startswith("| fixed")] == [
        " clean",
        " severity 5",
    ]
