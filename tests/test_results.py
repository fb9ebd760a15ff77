"""Records as a table."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sicl import results
from sicl.bench.run.results import load_records
from sicl.bench.run.schema import Record
from sicl.errors import DataError, OptionError

RUN = Path(__file__).resolve().parent.parent / "results" / "demo-source.jsonl.xz"


def test_a_run_has_one_row_for_each_record_and_calibrator() -> None:
    """Cells and numbers stand in columns; nothing nested is left."""
    rows = results.rows(RUN)
    softmax = [row for row in rows if row["calibrator"] == "softmax"]
    assert len(softmax) == len(load_records(RUN))
    assert all(isinstance(row["ece"], float) for row in softmax)
    assert not any(isinstance(value, dict | list) for row in rows for value in row.values())


def test_a_failed_cell_stays_visible(tmp_path: Path) -> None:
    """A mean must not lose cells quietly."""
    record = Record(
        dataset="d", model="m", method="tent", stream="benign", seed=0, status="failed", error="Out."
    )
    (tmp_path / "a.json").write_text(record.to_json())
    (row,) = results.rows(tmp_path)
    assert (row["status"], row["error"], row["calibrator"]) == ("failed", "Out.", None)


def test_an_empty_folder_is_one_sentence(tmp_path: Path) -> None:
    """As everywhere."""
    with pytest.raises(DataError, match="holds no records"):
        results.rows(tmp_path)


def test_without_pandas_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the way without it."""
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(OptionError, match=r"sicl\[pandas\]"):
        results.frame(RUN)


def test_a_frame_is_the_rows() -> None:
    """One pandas row each."""
    pytest.importorskip("pandas")
    assert len(results.frame(RUN)) == len(results.rows(RUN))
