"""The demo: what it runs, what it writes, and that calibration leaves accuracy alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sicl.bench.run.demo import demo_plan, run_demo, summary, write_demo
from sicl.errors import OptionError, SiclError

SMALL = {
    "method": "tent",
    "corruptions": ["gaussian_noise", "contrast"],
    "calibrators": ["softmax", "sicl"],
    "n": 256,
}


@pytest.fixture(scope="module")
def records() -> list:
    """The demo on 256 images of two corruptions."""
    return run_demo(demo_plan(**SMALL))


def test_sicl_at_least_halves_the_calibration_error_and_ranks_no_worse(records: list) -> None:
    """The headline of the README holds on the embedded data."""
    rows = summary(records)
    assert rows["sicl"]["ECE"] <= 0.5 * rows["softmax"]["ECE"]
    assert rows["sicl"]["AUROC"] >= rows["softmax"]["AUROC"]


def test_accuracy_is_the_same_for_every_calibrator(records: list) -> None:
    """Calibration changes confidence, never the predicted class."""
    rows = summary(records)
    assert rows["sicl"]["accuracy"] == rows["softmax"]["accuracy"]


def test_the_same_seed_gives_the_same_numbers(records: list) -> None:
    """Two runs agree bit for bit."""
    again = run_demo(demo_plan(**{**SMALL, "corruptions": ["gaussian_noise"]}))
    assert again[0].calibrators["sicl"]["ece"] == records[0].calibrators["sicl"]["ece"]
    assert again[0].calibrators["sicl"]["reliability"] == records[0].calibrators["sicl"]["reliability"]


def test_report_and_results_are_written(records: list, tmp_path: Path) -> None:
    """Both files are complete and nothing else is left behind."""
    page, results = write_demo(records, tmp_path / "out")
    assert page.read_text().rstrip().endswith("</html>")
    assert set(json.loads(results.read_text())["summary"]) == {"softmax", "sicl"}
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["report.html", "results.json"]


def test_an_unknown_method_is_one_sentence_with_the_nearest_name() -> None:
    """The plan is refused before anything runs."""
    with pytest.raises(OptionError, match="tent"):
        demo_plan(**{**SMALL, "method": "tennt"})


def test_a_failing_cell_ends_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    """No table is printed over a hole."""
    plan = demo_plan(**{**SMALL, "n": 1})
    monkeypatch.setattr("sicl.bench.run.shelf.Shelf.model", _broken)
    with pytest.raises(SiclError, match="The demo failed on gaussian_noise: broken"):
        run_demo(plan)


def _broken(*_arguments: object) -> None:
    raise OptionError("broken.")
