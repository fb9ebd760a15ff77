"""The demo: a plan like any other, what it prints and writes, and that calibration leaves accuracy alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sicl.bench.run.demo import demo_plan, summary, title
from sicl.bench.run.record import Record, load_records
from sicl.bench.run.runner import run_plan
from sicl.calibrate import CALIBRATORS
from sicl.cli import app
from sicl.errors import OptionError

SMALL = {
    "method": "tent",
    "corruptions": ["gaussian_noise", "contrast"],
    "calibrators": ["softmax", "sicl"],
    "n": 256,
}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> tuple[Record, ...]:
    """The demo on 256 images of two corruptions."""
    return run_plan(demo_plan(**SMALL), tmp_path_factory.mktemp("demo")).records


def demo(folder: Path, *options: str) -> tuple[int, str]:
    narrow = ["--corruptions", "contrast", "--calibrators", "softmax", "--images", "1", "--device", "cpu"]
    done = CliRunner().invoke(app, ["demo", "--out", str(folder), *narrow, *options])
    return done.exit_code, done.output


def test_sicl_at_least_halves_the_calibration_error_and_ranks_no_worse(records: tuple[Record, ...]) -> None:
    """The headline of the README holds on the embedded data."""
    rows = summary(records)
    assert rows["sicl"]["ECE"] <= 0.5 * rows["softmax"]["ECE"]
    assert rows["sicl"]["AUROC"] >= rows["softmax"]["AUROC"]


def test_accuracy_is_the_same_for_every_calibrator(records: tuple[Record, ...]) -> None:
    """Calibration changes confidence, never the predicted class."""
    rows = summary(records)
    assert rows["sicl"]["accuracy"] == rows["softmax"]["accuracy"]


def test_one_image_a_stream_has_no_auroc_and_is_shown_all_the_same(tmp_path: Path) -> None:
    """One prediction cannot be ranked: a dash, null in the file, and no number in its place."""
    status, shown = demo(tmp_path, "--method", "source")
    assert status == 0
    assert "-" in shown.splitlines()[-5]
    assert json.loads((tmp_path / "results.json").read_text())["summary"]["softmax"]["AUROC"] is None


def test_the_demo_is_a_plan_like_any_other(tmp_path: Path) -> None:
    """Records and a report with the method's own title are there, and a second call runs nothing."""
    options = ("--method", "sar", "--images", "8")
    assert demo(tmp_path, *options)[0] == 0
    assert len(load_records(tmp_path)) == 1
    assert "SAR on corrupted CIFAR-10" in (tmp_path / "report.html").read_text()
    assert "0 cells to run, 1 are there already." in demo(tmp_path, *options)[1]
    assert title("tent").startswith("TENT on")


def test_a_failing_cell_is_told_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit status is 1, as of every plan."""

    def broken(*_arguments: object) -> None:
        raise OptionError("broken.")

    monkeypatch.setattr("sicl.bench.run.shelf.Shelf.model", broken)
    status, shown = demo(tmp_path)
    assert status == 1
    assert "broken." in shown


def test_an_unknown_method_is_one_sentence_with_the_nearest_name() -> None:
    """The plan is refused before anything runs."""
    with pytest.raises(OptionError, match="tent"):
        demo_plan(**{**SMALL, "method": "tennt"})


def test_nothing_named_means_all_calibrators_and_a_corruption_of_each_category() -> None:
    """The registry is the only list of calibrators."""
    plan = demo_plan(method="tent", corruptions=[], calibrators=[], n=1)
    assert list(plan.cells[0].spec["calibrators"]) == list(CALIBRATORS)
    assert len(plan) == 4
