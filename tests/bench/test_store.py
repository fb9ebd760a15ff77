"""The run folder: atomic, locked, and clear about what is done."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_parts import TINY

from sicl.bench.plan.plan import load_plan
from sicl.bench.run.record import Record, load_records
from sicl.bench.run.run import CellOutcome, run_cell
from sicl.bench.run.store import Store
from sicl.errors import DataError

PLAN = load_plan(TINY)
CELL = PLAN.cells[0]


def failed() -> CellOutcome:
    return CellOutcome(Record(**CELL.identity, status="failed", error="no", spec=dict(CELL.spec)))


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    """What is written under a cell's id is read under it, and only under it."""
    store, outcome = Store(tmp_path), run_cell(CELL)
    assert store.read(CELL) is None
    store.write(CELL, outcome)
    assert store.read(CELL) == outcome.record
    assert store.read(PLAN.cells[1]) is None
    assert store.path(CELL).name == f"{CELL.id}.json"
    assert load_records(tmp_path) == [outcome.record]


def test_done_cells_are_those_with_a_complete_record(tmp_path: Path) -> None:
    """Failed cells count as done unless asked for; wanted predictions must be there too."""
    store = Store(tmp_path)
    store.write(CELL, failed())
    assert list(store.done([CELL], predictions=False, retry_failed=False)) == [CELL.id]
    assert not store.done([CELL], predictions=False, retry_failed=True)
    store.write(CELL, run_cell(CELL))
    assert list(store.done([CELL], predictions=False, retry_failed=True)) == [CELL.id]
    assert not store.done([CELL], predictions=True, retry_failed=False)
    store.write(CELL, run_cell(CELL, predictions=True))
    assert list(store.done([CELL], predictions=True, retry_failed=False)) == [CELL.id]


def test_a_damaged_record_is_named_not_skipped(tmp_path: Path) -> None:
    """Half a file, from outside, is an error with the way out."""
    store = Store(tmp_path)
    store.write(CELL, failed())
    store.path(CELL).write_text(store.path(CELL).read_text()[:40])
    with pytest.raises(DataError, match=f"{CELL.id}.*Remove the file"):
        store.done([CELL], predictions=False, retry_failed=False)


def test_two_runs_cannot_write_into_one_folder(tmp_path: Path) -> None:
    """The second is told; the folder is free again afterwards."""
    with Store(tmp_path).locked(), pytest.raises(DataError, match="another run"), Store(tmp_path).locked():
        pass
    with Store(tmp_path).locked():
        pass


def test_leftovers_of_a_killed_run_go(tmp_path: Path) -> None:
    """Part files are removed, records stay."""
    store = Store(tmp_path)
    store.write(CELL, failed())
    for name in ("x.json.123.part", "predictions/y.npz.9.part"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    store.clean()
    assert not list(tmp_path.rglob("*.part"))
    assert store.read(CELL) is not None


def test_the_plan_is_kept_beside_its_records(tmp_path: Path) -> None:
    """Whoever finds the folder can see what was asked, and records can still be read."""
    store = Store(tmp_path)
    store.write_plan(PLAN)
    store.write(CELL, failed())
    assert '"own_parts:tiny_model"' in (tmp_path / "plan-tiny.json").read_text()
    assert len(load_records(tmp_path)) == 1
