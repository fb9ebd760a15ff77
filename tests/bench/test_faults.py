"""Faults from outside: odd text, records and images that were changed, folders of two plans, set-ups that fail."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import own_parts
import pytest
from own_parts import TINY
from report_records import cell
from rich.console import Console

from sicl.bench.executors import Finished, Settings, Started
from sicl.bench.executors.local import Processes
from sicl.bench.plan.plan import BenchPlan, load_plan
from sicl.bench.report.text import comma_separated, latex, markdown
from sicl.bench.run.live import Display, show_plan, show_summary
from sicl.bench.run.record import load_records
from sicl.bench.run.results import load_results
from sicl.bench.run.run import CellOutcome, run_cell
from sicl.bench.run.runner import Result, run_plan
from sicl.bench.run.store import Store
from sicl.cli import main
from sicl.errors import DataError, SetupError

ODD = "tent [lr 1e-3] [/x] :bug:"


def one(**changes: Any) -> BenchPlan:
    streams = [{"name": "benign", "corruptions": ["brightness"], "batch_size": 20}]
    return load_plan({**TINY, "methods": ["tent"], "streams": streams, **changes})


def terminal() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(width=200, file=out, force_terminal=True, highlight=False, color_system=None), out


# User text is never markup.


def test_square_brackets_in_labels_and_errors_are_text_on_a_terminal() -> None:
    """Two learning rates are two names, and an error with a closing tag ends nothing."""
    console, out = terminal()
    plan = load_plan({**TINY, "methods": [{"name": "own_parts:Broken", "label": ODD}]})
    broken = replace(run_cell(plan.cells[0]).record, error="no [/x] luck")
    with Display(console) as display:
        display.start(2, 2)
        display.watch(Started(plan.cells[0], 0))
        display.watch(Finished(plan.cells[0], 0, CellOutcome(broken)))
    show_plan(plan, console)
    show_summary(Result((broken,), 1), console)
    shown = out.getvalue()
    assert shown.count(ODD) >= 4
    assert "no [/x] luck" in shown


def test_tables_escape_user_text() -> None:
    """LaTeX, CSV and Markdown print labels as they are: no commands, no formulas, no markup."""
    records = [cell(method="=cmd()"), cell(method=r"\input{x}|<b>*a*")]
    text = markdown(records, "a | <script> *b*")
    assert "<script>" not in text
    assert "<b>" not in text
    assert r"\|" in text
    rows = comma_separated(records).splitlines()
    assert any(",'=cmd()," in row for row in rows)
    tex = latex(records, "t")
    assert r"\input" not in tex
    assert r"\textbackslash{}input\{x\}" in tex


# Records that are no JSON.


@pytest.mark.parametrize("value", [float("nan"), np.float32(1.0), object(), {"deep": float("inf")}])
def test_a_summary_that_is_no_json_is_a_failed_cell_with_its_reason(
    value: object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The other cells go on, and so does the next run."""
    monkeypatch.setattr(own_parts._FlatCalibration, "summary", lambda self: {"mine": value})
    result = run_plan(one(), tmp_path)
    assert result.failed[0].error is not None
    assert "`summary()`" in result.failed[0].error
    assert run_plan(one(), tmp_path).ran == 0


def test_half_a_character_in_an_error_is_kept_as_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file name that is no UTF-8, say."""

    def broken(*_: object) -> None:
        raise RuntimeError("bad \udcff name")

    monkeypatch.setattr("sicl.bench.run.shelf.Shelf.model", broken)
    assert run_plan(one(), tmp_path).failed[0].error == "RuntimeError: bad \\udcff name"


# Resume.


def test_another_cells_record_under_this_name_is_refused(tmp_path: Path) -> None:
    """A file's name says nothing about its content."""
    plan, store = load_plan(TINY), Store(tmp_path)
    run_plan(plan, tmp_path)
    first, second = plan.cells[:2]
    store.path(first).write_text(store.path(second).read_text())
    with pytest.raises(DataError, match="another cell"):
        run_plan(plan, tmp_path)


def test_an_edited_record_is_refused_by_run_and_report(tmp_path: Path) -> None:
    """A better accuracy written by hand does not survive reading, nor does a record without its digest."""
    plan, store = one(), Store(tmp_path)
    run_plan(plan, tmp_path)
    path = store.path(plan.cells[0])
    whole = json.loads(path.read_text())
    for change in ({"accuracy": 0.99}, {"digest": None}, {"n": 61}):
        edited = {key: value for key, value in {**whole, **change}.items() if value is not None}
        path.write_text(json.dumps(edited))
        with pytest.raises(DataError, match="not as it was written"):
            run_plan(plan, tmp_path)
        with pytest.raises(DataError, match="not as it was written"):
            load_records(tmp_path)
    path.write_text(json.dumps(whole, indent=3))
    assert run_plan(plan, tmp_path).ran == 0


def test_records_of_earlier_versions_are_read_and_resumed(tmp_path: Path) -> None:
    """They have schema 1 and no digest."""
    plan, store = one(), Store(tmp_path)
    run_plan(plan, tmp_path)
    path = store.path(plan.cells[0])
    old = {key: value for key, value in json.loads(path.read_text()).items() if key != "digest"}
    path.write_text(json.dumps({**old, "schema": 1}))
    assert run_plan(plan, tmp_path).ran == 0
    assert load_results(tmp_path).records[0].schema == 1


# Cached images.


def test_zeroed_pixels_in_the_cache_are_found_and_made_again(tmp_path: Path) -> None:
    """The length is right, the content is not: the numbers are those of a fresh run."""
    settings = Settings(cache=str(tmp_path / "cache"))
    fresh = run_plan(one(), tmp_path / "a", settings=settings).records[0]
    (file,) = (tmp_path / "cache").glob("*.npy")
    content = bytearray(file.read_bytes())
    content[-5000:] = bytes(5000)
    file.write_bytes(content)
    again = run_plan(one(), tmp_path / "b", settings=settings).records[0]
    assert again.calibrators == fresh.calibrators
    assert again.data["images"] == fresh.data["images"] != {}
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [file.name]


def test_files_and_their_folders_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are synced, of cached images and of records."""
    synced: list[bool] = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(os.path.isdir(f"/proc/self/fd/{fd}")), real(fd))
    )
    run_plan(one(), tmp_path / "out", settings=Settings(cache=str(tmp_path / "cache")))
    assert synced.count(True) >= 3
    assert synced.count(False) >= 3


# Two plans in one folder.


def test_a_folder_of_two_plans_is_never_pooled(tmp_path: Path) -> None:
    """The report asks which; named, it takes that one's records alone."""
    small = [{"name": "benign", "corruptions": ["brightness"], "batch_size": 20, "n": 20}]
    run_plan(one(name="large"), tmp_path)
    run_plan(one(name="small", streams=small), tmp_path)
    with pytest.raises(
        DataError, match=r"2 plans: large \(1 cells\), small \(1 cells\); name one with --plan"
    ):
        load_results(tmp_path)
    assert [record.n for record in load_results(tmp_path, "large").records] == [60]
    assert [record.n for record in load_results(tmp_path, "small").records] == [20]
    with pytest.raises(DataError, match="no plan 'tiny'"):
        load_results(tmp_path, "tiny")


def test_an_edited_plan_of_the_same_name_reports_its_own_records(tmp_path: Path) -> None:
    """The records of the earlier version are left out, and counted."""
    small = [{"name": "benign", "corruptions": ["brightness"], "batch_size": 20, "n": 20}]
    run_plan(one(), tmp_path)
    run_plan(one(streams=small), tmp_path)
    found = load_results(tmp_path)
    assert ([record.n for record in found.records], found.planned, found.left_out) == ([20], 1, 1)


# Set-ups.


@pytest.mark.parametrize("workers", [0, 1])
def test_a_full_disk_stops_the_run_and_fails_no_cell(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of a cell that could not be tried would stay for good."""

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/data/x")

    executor = None
    if workers:
        executor = Processes(workers=1)
        cells = one(datasets=[{"name": "own_parts:full_disk", "label": "tiny"}])
    else:
        monkeypatch.setattr("sicl.streams.cache.write_npy", full)
        cells = one()
    settings = Settings(cache=str(tmp_path / "cache"), threads=1)
    with pytest.raises(SetupError, match="No space left on device"):
        run_plan(cells, tmp_path / "out", executor=executor, settings=settings)
    assert not list((tmp_path / "out").glob("*seed*.json"))


def test_a_folder_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the record is written, not only when the run begins."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sicl.bench.run.store.Store.write", full)
    with pytest.raises(SetupError, match="No space left on device"):
        run_plan(one(), tmp_path / "out")


@pytest.mark.parametrize("settings", [{"threads": -1}, {"threads": 0}, {"cache": "FILE"}, {"data": "FILE"}])
def test_impossible_settings_stop_the_run_before_it_begins(settings: dict[str, Any], tmp_path: Path) -> None:
    """Nothing is written."""
    (tmp_path / "FILE").touch()
    given = {key: str(tmp_path / value) if value == "FILE" else value for key, value in settings.items()}
    with pytest.raises(SetupError, match=next(iter(settings))):
        run_plan(one(), tmp_path / "out", settings=Settings(**given))
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_cell_over_its_time_is_tried_again_and_then_recorded(tmp_path: Path) -> None:
    """A worker that hangs is ended; the other cells are run."""
    plan = load_plan(
        {
            **TINY,
            "methods": [{"name": "own_parts:Sleeper", "label": "sleeper"}, "source"],
            "streams": [{"name": "benign", "corruptions": ["clean"], "batch_size": 20}],
        }
    )
    executor = Processes(workers=1, retries=1, cell_timeout=1.0)
    begun = time.monotonic()
    result = run_plan(plan, tmp_path, executor=executor, settings=Settings(threads=1))
    assert [record.status for record in result.records] == ["failed", "done"]
    assert result.records[0].error == "The cell was lost: it took longer than 1 s 2 times."
    assert time.monotonic() - begun < 60


# The command line: exit codes and signals.


def command(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    paths = os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))
    return subprocess.Popen(
        [sys.executable, "-m", "sicl.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": paths},
    )


def plan_file(folder: Path, method: str = "source") -> Path:
    path = folder / "mine.toml"
    path.write_text(
        'datasets = ["own_parts:tiny_dataset"]\nmodels = [{name = "tiny", load = "own_parts:tiny_model"}]\n'
        f'methods = ["{method}"]\ncalibrators = ["softmax"]\n'
        'streams = [{name = "benign", corruptions = ["clean"], batch_size = 20}]\n'
    )
    return path


@pytest.mark.parametrize(
    ("method", "options", "status"),
    [
        ("source", (), 0),
        ("own_parts:Broken", (), 1),
        ("tnt", (), 2),
        ("source", ("--threads", "-1"), 3),
        ("source", ("--cache", "mine.toml"), 3),
        ("source", ("--out", "mine.toml"), 3),
    ],
)
def test_the_exit_status_says_whose_fault_it_is(
    method: str,
    options: tuple[str, ...],
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """0 all done, 1 cells failed, 2 usage, 3 the set-up."""
    given = ["sicl", "bench", str(plan_file(tmp_path, method)), "--device", "cpu", *options]
    monkeypatch.setattr(sys, "argv", given)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sicl.cli._listen", lambda: None)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == status
    assert (status < 2) == (capsys.readouterr().err == "")


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "name", ["SIGTERM", pytest.param("SIGINT", marks=SLOW), pytest.param("SIGHUP", marks=SLOW)]
)
def test_signals_end_a_run_with_the_promised_sentence(name: str, tmp_path: Path) -> None:
    """All three alike: 130, nothing half-written."""
    given = ("bench", str(plan_file(tmp_path, "own_parts:Sleeper")), "--device", "cpu", "--out", "out")
    with command(*given, cwd=tmp_path) as process:
        late = time.monotonic() + 60
        while not (tmp_path / "out" / "asleep").exists() and time.monotonic() < late:
            time.sleep(0.1)
        process.send_signal(getattr(signal, name))
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert (
        err
        == "sicl: stopped; nothing was left half-written, and the same command goes on where it stopped.\n"
    )
    assert not list(tmp_path.rglob("*.part"))
