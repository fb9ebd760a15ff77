"""`sicl bench` and `sicl paper` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from own_parts import TINY
from typer.testing import CliRunner

from sicl.bench.run.record import load_records
from sicl.cli.bench import bench
from sicl.cli.paper import app as paper
from sicl.errors import OptionError

APP = typer.Typer()
APP.command()(bench)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """Return a plan file of two cells."""
    path = tmp_path / "mine.toml"
    stream = '{name = "benign", corruptions = ["clean"], batch_size = 20}'
    path.write_text(
        f"datasets = {json.dumps([TINY['datasets'][0]['name']])}\n"
        f'models = [{{name = "tiny", load = "own_parts:tiny_model"}}]\n'
        f'methods = ["source", "tent"]\ncalibrators = ["softmax"]\nstreams = [{stream}]\n'
    )
    return path


def test_a_dry_run_shows_the_plan_and_writes_nothing(plan: Path, tmp_path: Path) -> None:
    """Cells and cost are shown; there is no folder."""
    result = CliRunner().invoke(APP, [str(plan), "--dry-run", "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert result.output.startswith("The plan imports own_parts.")
    assert "mine: 2 cells" in result.output
    assert "forward passes" in result.output
    assert not (tmp_path / "out").exists()


def test_a_run_writes_records_and_a_report_and_goes_on(plan: Path, tmp_path: Path) -> None:
    """The second call finds everything done."""
    arguments = [str(plan), "--out", str(tmp_path / "out"), "--device", "cpu", "--predictions"]
    first = CliRunner().invoke(APP, arguments)
    assert first.exit_code == 0, first.output
    assert "[2/2]" in first.output
    assert len(load_records(tmp_path / "out")) == 2
    assert len(list((tmp_path / "out" / "predictions").glob("*.npz"))) == 2
    assert (tmp_path / "out" / "report.html").is_file()
    again = CliRunner().invoke(APP, arguments)
    assert "0 cells to run, 2 are there already." in again.output


def test_a_failed_cell_makes_the_command_fail(plan: Path, tmp_path: Path) -> None:
    """The exit status is 1 and the reason is printed."""
    plan.write_text(plan.read_text().replace('"tent"', '"own_parts:Broken"'))
    result = CliRunner().invoke(APP, [str(plan), "--out", str(tmp_path / "out"), "--device", "cpu"])
    assert result.exit_code == 1
    assert "no such luck" in result.output
    assert "1 of 1" not in result.output
    assert "0 of 1" in result.output


def test_a_wrong_plan_is_refused(plan: Path) -> None:
    """Nothing runs; the error has every problem."""
    plan.write_text(plan.read_text().replace('"tent"', '"tnt"'))
    result = CliRunner().invoke(APP, [str(plan)])
    assert isinstance(result.exception, OptionError)
    assert "'tent'" in str(result.exception)


def test_presets_are_listed() -> None:
    """Every table and figure has a line."""
    result = CliRunner().invoke(paper, ["list"])
    assert result.exit_code == 0
    assert all(name in result.output for name in ("table2", "table1", "figure6", "figure7", "sotta"))


def test_a_quick_figure_runs_from_the_command_line(tmp_path: Path) -> None:
    """Two cells on the demonstration model: numbers, CSV and drawings are there."""
    out = tmp_path / "out"
    narrow = [
        "--quick",
        "--n",
        "32",
        "--batch-size",
        "16",
        "--corruptions",
        "contrast",
        "--methods",
        "source",
    ]
    result = CliRunner().invoke(paper, ["run", "figure2", *narrow, "--out", str(out), "--device", "cpu"])
    assert result.exit_code == 0, (result.output, result.exception)
    assert "sliding window" in result.output
    assert (out / "figure2.md").is_file()
    drawing = (out / "figure2.svg").read_text()
    assert drawing.startswith("<svg")
    report = (out / "report.html").read_text()
    drawn = [letter for letter in "abcd" if f"({letter}) " in drawing]
    assert drawn
    assert all(f"({letter}) " in report for letter in drawn)


def test_a_presets_plan_is_shown_without_running() -> None:
    """`--dry-run` needs no data."""
    result = CliRunner().invoke(paper, ["run", "table1", "--quick", "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "table2-quick: 4 cells" in result.output


@pytest.mark.parametrize(
    ("arguments", "expected"), [(["tabel2"], "'table2'"), (["table1", "--seeds", "a"], "seeds")]
)
def test_wrong_names_and_seeds_are_refused(arguments: list[str], expected: str) -> None:
    """The nearest name, or the argument, is named."""
    result = CliRunner().invoke(paper, ["run", *arguments])
    assert isinstance(result.exception, OptionError)
    assert expected in str(result.exception)
