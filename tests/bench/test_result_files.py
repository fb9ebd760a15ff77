"""Packed records and the overview: read as a folder is, the same bytes each time, no value for a missing one."""

from __future__ import annotations

import json
import lzma
from dataclasses import replace
from pathlib import Path

import pytest
from own_parts import TINY
from report_records import cell
from typer.testing import CliRunner

from sicl.bench.plan.plan import load_plan
from sicl.bench.run.results import load_records, load_results, pack_results
from sicl.bench.run.runner import run_plan
from sicl.bench.tables.summary import floor, overview
from sicl.cli import app
from sicl.errors import DataError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four cells."""
    path = tmp_path_factory.mktemp("run")
    run_plan(load_plan(TINY), path)
    return path


def test_a_packed_file_is_read_as_its_folder(folder: Path, tmp_path: Path) -> None:
    """Records, number of planned cells and the report are the same; the bytes too, packed twice."""
    first = pack_results(folder, tmp_path / "a.jsonl.xz")
    second = pack_results(folder, tmp_path / "b.jsonl.xz")
    assert first.read_bytes() == second.read_bytes()
    assert load_results(first).planned == 4
    assert sorted(r.label for r in load_records(first)) == sorted(r.label for r in load_records(folder))
    for command in (["report", str(first), "-o", str(tmp_path)], ["results", "show", str(first)]):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, (done.output, done.exception)
    assert (tmp_path / "report.html").is_file()
    assert done.output == CliRunner().invoke(app, ["results", "show", str(folder)]).output


def test_an_edited_line_of_a_packed_file_is_named(folder: Path, tmp_path: Path) -> None:
    """The digests travel with the records."""
    path = pack_results(folder, tmp_path / "a.jsonl.xz")
    lines = lzma.decompress(path.read_bytes()).decode().splitlines()
    values = json.loads(lines[2])
    lines[2] = json.dumps({**values, "accuracy": 1.0})
    path.write_bytes(lzma.compress("\n".join(lines).encode()))
    with pytest.raises(DataError, match=r"Line 3 of .* not as it was written"):
        load_records(path)


@pytest.mark.parametrize("content", [b"", b"no archive", lzma.compress(b"{}")])
def test_a_file_without_records_is_one_sentence(content: bytes, tmp_path: Path) -> None:
    """Whatever else it is."""
    path = tmp_path / "a.jsonl.xz"
    path.write_bytes(content)
    with pytest.raises(DataError, match="records"):
        load_records(path)


def test_a_packed_file_has_the_ending_it_is_found_by(folder: Path, tmp_path: Path) -> None:
    """Another is refused before anything is written."""
    with pytest.raises(DataError, match=r"\.jsonl\.xz"):
        pack_results(folder, tmp_path / "a.json")
    assert not list(tmp_path.iterdir())


def test_the_overview_says_over_how_many_cells_a_mean_is() -> None:
    """A failed cell and one without AUROC are in no mean, and nothing stands in for them."""
    whole = cell("fog")
    sicl = {**whole.calibrators["sicl"], "auroc": None}
    without = replace(cell("snow"), calibrators={**cell("snow").calibrators, "sicl": sicl})
    failed = replace(cell("frost"), status="failed", error="no", accuracy=None, calibrators={})
    text = overview([whole, without, failed])
    assert "2 of 3 (1 failed)" in text
    assert f"({100 * whole.calibrators['sicl']['auroc']:.1f} over 1)" in text
    assert "over 2 of 3 cells (1 failed)" in text
    assert "0.5" not in overview([replace(failed)])
    assert overview([failed]).count("| - |") >= 1


def test_the_overview_says_where_a_calibrator_did_harm() -> None:
    """By more than a point of ECE, or half a point of AUROC; an AUROC that is not there counts as neither."""
    cells = []
    for name, ece, auroc in (
        ("fog", 0.009, -0.004),
        ("snow", 0.011, 0.1),
        ("frost", -0.2, -0.006),
        ("contrast", 0.0, None),
    ):
        whole = cell(name)
        softmax = whole.calibrators["softmax"]
        ours = {
            **softmax,
            "ece": softmax["ece"] + ece,
            "auroc": None if auroc is None else softmax["auroc"] + auroc,
        }
        cells.append(replace(whole, calibrators={"softmax": softmax, "sicl": ours}))
    text = overview(cells)
    assert (
        "sicl beside the softmax: ECE at most 1 point higher in 3 of 4 cells, AUROC at most 0.5 lower in 2 of 3"
        in text
    )


def test_the_overview_says_how_many_cells_were_not_run() -> None:
    """Of a plan that is known and not complete; otherwise nothing."""
    cells = [cell("fog"), cell("snow")]
    assert "- 3 of 5 planned cells have no record yet" in overview(cells, planned=5)
    assert all("planned" not in overview(cells, planned=planned) for planned in (None, 2))


def test_severities_can_have_rows_of_their_own() -> None:
    """Clean images have none."""
    cells = [
        replace(cell("fog"), severity=5),
        replace(cell("snow"), severity=3),
        replace(cell("frost"), severity=None),
    ]
    text = overview(cells, by_severity=True)
    assert [row.split(" | ")[1] for row in text.splitlines()[2:5]] == [
        "benign, clean",
        "benign, severity 3",
        "benign, severity 5",
    ]


def test_the_floor_is_the_error_of_perfect_confidence() -> None:
    """Half of 100 samples right at confidence 0.5: sqrt(2 p (1 - p) / (pi n)); no bins, no floor."""
    bins = {"count": [0, 100], "confidence": [0.0, 0.5]}
    assert floor({"reliability": bins}) == pytest.approx(0.0399, abs=1e-4)
    assert floor({}) is None
