"""Running cells: complete records, the same numbers again, failures that stay visible, exact resume."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from own_parts import TINY
from PIL import Image
from rich.console import Console

import sicl
from sicl.bench.executors import Event, Finished, Stepped
from sicl.bench.plan.cell import Cell
from sicl.bench.plan.plan import load_plan
from sicl.bench.run.live import Display, LiveReport, duration, show_plan, show_summary
from sicl.bench.run.record import record_from_predictions
from sicl.bench.run.run import Progress, fetched, run_cell
from sicl.bench.run.runner import run_plan
from sicl.bench.run.schema import Record
from sicl.bench.run.shelf import Shelf, weights_checksum
from sicl.types import OOD_LABEL, Batch, Prediction


def one_cell(**changes: Any) -> Cell:
    return load_plan({**TINY, "methods": ["tent"], **changes}).cells[-1]


def numbers(record: Record) -> dict[str, Any]:
    """Return everything of a record but where and how long it ran."""
    values = json.loads(record.to_json())
    return {key: value for key, value in values.items() if key not in ("environment", "timing")}


def test_a_record_says_what_was_run_where_and_on_what() -> None:
    """Complete options, seeds, versions, device, data and weights are all there."""
    record = run_cell(one_cell(predict="after")).record
    assert record.status == "done"
    assert (record.dataset, record.model, record.method, record.stream) == ("tiny", "tiny", "tent", "benign")
    assert (record.corruption, record.severity, record.seed, record.n) == ("brightness", 5, 0, 60)
    assert record.spec["resolved"]["method"] == {
        "class": "Tent",
        "lr": 1e-3,
        "objective": "entropy",
        "optimizer": "adam",
        "predict": "after",
        "seed": 0,
        "steps": 1,
    }
    assert record.spec["resolved"]["calibrators"]["flat"]["value"] == 0.5
    assert record.environment["sicl"] == sicl.__version__
    assert record.environment["torch"] == torch.__version__
    assert record.environment["device"] == "cpu"
    assert record.data["dataset"] == "tiny test"
    assert record.data["weights"]["sha256"]
    assert record.timing["run_s"] > 0


def test_adaptation_and_each_calibrator_are_timed_apart() -> None:
    """Each takes its time, and together they are no longer than the whole run."""
    record = run_cell(load_plan(TINY).cells[0]).record
    parts = record.timing["calibrate_s"]
    assert parts.keys() == record.calibrators.keys()
    assert min(parts.values()) > 0
    assert 0 < record.timing["adapt_s"] < record.timing["run_s"] - sum(parts.values())


def test_the_same_cell_gives_the_same_numbers() -> None:
    """Alone, again, and after other cells on the same shelf."""
    shelf = Shelf()
    cells = load_plan(TINY).cells
    first = numbers(run_cell(cells[3]).record)
    for cell in cells:
        last = numbers(run_cell(cell, shelf).record)
    assert last == first


def test_a_cell_that_fails_leaves_its_reason_and_no_numbers() -> None:
    """The error, its place in the code and the spec are kept."""
    record = run_cell(one_cell(methods=["own_parts:Broken"])).record
    assert record.status == "failed"
    assert record.error == "RuntimeError: no such luck"
    assert record.calibrators == {}
    assert "no such luck" in record.environment["traceback"]
    assert record.spec["method"]["class"] == "own_parts:Broken"


def test_a_model_with_too_few_classes_fails_with_a_next_action() -> None:
    """The sentence says how to keep the two apart."""
    record = run_cell(one_cell(datasets=["demo"], streams=[{"name": "benign", "n": 20}])).record
    assert record.error is not None
    assert "3 classes" in record.error
    assert "`datasets`" in record.error


def test_every_metric_can_be_computed_again_from_the_predictions(tmp_path: Path) -> None:
    """The kept predictions give the record's own numbers."""
    outcome = run_cell(one_cell(calibrators=["softmax"]), predictions=True)
    path = tmp_path / "p.npz"
    assert outcome.predictions is not None
    path.write_bytes(outcome.predictions)
    assert record_from_predictions(path).calibrators == outcome.record.calibrators


def test_a_calibration_may_add_numbers_of_its_own() -> None:
    """What `summary()` returns stands beside the metrics."""
    assert run_cell(one_cell()).record.calibrators["flat"]["seen"] == 60


def test_before_and_after_are_different_results() -> None:
    """The plan's `predict` reaches the method: a bias that is shifted first changes the first batch."""
    shift = [{"name": "own_parts:Shift", "label": "shift", "by": 50.0}]
    streams = [{"name": "benign", "corruptions": ["clean"], "batch_size": 60}]
    before, after = (
        run_cell(one_cell(methods=shift, streams=streams, predict=when)).record
        for when in ("before", "after")
    )
    assert after.accuracy == pytest.approx(1 / 3)
    assert before.calibrators["softmax"]["mean_confidence"] < after.calibrators["softmax"]["mean_confidence"]


def test_progress_is_told_batch_by_batch() -> None:
    """Accuracy and ECE so far end at the record's."""
    steps: list[Progress] = []
    record = run_cell(one_cell(), on_batch=steps.append).record
    assert [(step.batches, step.total) for step in steps] == [(1, 3), (2, 3), (3, 3)]
    assert steps[-1].accuracy == record.accuracy
    assert steps[-1].ece == pytest.approx(record.calibrators["flat"]["cumulative_ece"])


def test_a_shelf_loads_once() -> None:
    """The same model object serves the next cell, and its weights do not move."""
    shelf = Shelf()
    model, checksum = shelf.model("own_parts:tiny_model", {})
    assert run_cell(one_cell(), shelf).record.status == "done"
    assert shelf.model("own_parts:tiny_model", {})[0] is model
    assert weights_checksum(model) == checksum
    for width in range(1, 9):
        shelf.model("own_parts:tiny_model", {"width": width})
    assert shelf.model("own_parts:tiny_model", {})[0] is not model


def test_a_second_run_runs_nothing(tmp_path: Path) -> None:
    """What is there is done; the records come back in the plan's order."""
    plan = load_plan(TINY)
    first = run_plan(plan, tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*seed*.json")}
    again = run_plan(plan, tmp_path)
    assert (first.ran, again.ran) == (4, 0)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*seed*.json")} == times
    assert again.records == first.records
    assert [record.method for record in again.records] == ["source", "source", "tent", "tent"]


def test_failed_cells_run_again_only_when_asked(tmp_path: Path) -> None:
    """A failure is a result; averages name it until it is run again."""
    plan = load_plan({**TINY, "methods": ["own_parts:Broken", "source"]})
    assert len(run_plan(plan, tmp_path).failed) == 2
    assert run_plan(plan, tmp_path).ran == 0
    result = run_plan(plan, tmp_path, retry_failed=True)
    assert result.ran == 2
    console = Console(width=200, file=io.StringIO(), record=True)
    show_summary(result, console)
    shown = console.export_text()
    assert "0 of 2" in shown
    assert "FAILED tiny / tiny / own_parts:Broken / benign clean" in shown
    assert "2 cells failed" in shown


def test_a_killed_run_goes_on_to_the_same_results(tmp_path: Path) -> None:
    """kill -9 after the first record: the next run computes the rest, and nothing twice."""
    table = {**TINY, "methods": ["source", "tent", "batchnorm"]}
    program = (
        "import json, sys, time; from sicl.bench.plan.plan import load_plan\n"
        "from sicl.bench.run.runner import run_plan\n"
        "run_plan(load_plan(json.loads(sys.argv[1])), sys.argv[2], watch=lambda event: time.sleep(0.1))"
    )
    command = [sys.executable, "-c", program, json.dumps(table), str(tmp_path / "killed")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", ""))),
    }
    with subprocess.Popen(command, env=environment) as process:
        waited = time.monotonic() + 60
        while not list(tmp_path.glob("killed/*seed*.json")) and time.monotonic() < waited:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    kept = {path.name: path.stat().st_mtime_ns for path in tmp_path.glob("killed/*seed*.json")}
    assert 1 <= len(kept) < 6
    plan = load_plan(table)
    resumed = run_plan(plan, tmp_path / "killed")
    assert resumed.ran == 6 - len(kept)
    assert all((tmp_path / "killed" / name).stat().st_mtime_ns == when for name, when in kept.items())
    undisturbed = run_plan(plan, tmp_path / "whole")
    assert [numbers(record) for record in resumed.records] == [numbers(r) for r in undisturbed.records]
    assert not list(tmp_path.rglob("*.part"))


def test_the_display_shows_cells_results_and_time_left() -> None:
    """A finished cell is one line; a live terminal also shows the running one."""
    cell, lines = one_cell(), Console(width=160, file=io.StringIO(), record=True)
    clock = iter([0.0, 60.0]).__next__
    outcome = run_cell(cell)
    with Display(lines, clock) as display:
        display.start(3, 4)
        display.watch(Stepped(cell, 0, Progress(1, 3, 0.5, None)))
        display.watch(Finished(cell, 0, outcome))
    shown = lines.export_text()
    assert "3 cells to run, 1 are there already." in shown
    assert "[1/3] tiny / tiny / tent / benign brightness 5 / seed 0: accuracy" in shown
    assert "(2 min left)" in shown
    times = [duration(seconds) for seconds in (5, 600, 9000, 1.3e8)]
    assert times == ["5 s", "10 min", "2.5 h", "1,505 days"]


def test_the_report_of_a_running_plan_says_what_is_missing(tmp_path: Path) -> None:
    """It is written anew at most once a minute, and more rarely if writing takes long."""
    now = [0.0]

    def clock() -> float:
        now[0] += 2.0  # Writing, between two looks at the clock, takes two seconds.
        return now[0]

    plan, page = load_plan(TINY), tmp_path / "report.html"
    report = LiveReport(plan, tmp_path, clock)
    missing: list[int | None] = []

    def watch(event: Event) -> None:
        if isinstance(event, Finished):
            now[0] += 40.0
            report.watch(event)
            text = page.read_text(encoding="utf-8") if page.exists() else ""
            found = re.search(r"(\d) of 4 planned cells have no record yet", text)
            missing.append(int(found[1]) if found else None)

    result = run_plan(plan, tmp_path, watch=watch)
    assert missing == [None, 2, 2, 2]
    assert "planned cells have no record" not in report.write(result.records).read_text(encoding="utf-8")


def test_a_plan_can_be_shown() -> None:
    """Counts, the first cells and the cost are there."""
    console = Console(width=160, file=io.StringIO(), record=True)
    streams = [{"name": "benign", "corruptions": ["clean", "fog"], "n": 60}]
    show_plan(load_plan({**TINY, "seeds": [0, 1], "streams": streams}), console)
    shown = console.export_text()
    assert "8 cells" in shown
    assert "tent (4)" in shown
    assert "and 3 more" in shown
    assert "480 images" in shown


def test_what_comes_from_a_device_in_one_piece_is_what_was_predicted() -> None:
    """Labels survive the way through float64, confidences through float32 (here with a stand-in for a GPU)."""
    batch = Batch(
        images=torch.zeros(3, 3, 4, 4), labels=torch.tensor([2, 999, OOD_LABEL]), domains=("a",) * 3
    )
    predictions = {
        name: Prediction(labels=torch.tensor([1, 2, 999]), confidence=torch.rand(3), logits=torch.zeros(3, 2))
        for name in ("first", "second")
    }

    class Elsewhere(torch.Tensor):
        """Says that it is on a GPU."""

        device = torch.device("cuda")  # type: ignore[assignment]

    away = replace(batch, labels=batch.labels.as_subclass(Elsewhere))
    here, brought = fetched(away, predictions)
    assert torch.equal(torch.as_tensor(here.labels), batch.labels)
    for name, prediction in predictions.items():
        assert torch.equal(torch.as_tensor(brought[name].labels), prediction.labels)
        assert torch.equal(torch.as_tensor(brought[name].confidence), prediction.confidence)


def test_imagenet_comes_in_the_size_that_the_model_states(tmp_path: Path) -> None:
    """224 pixels are the protocol's own crop; a model made for another size gets pictures of that size."""
    for name in "abc":
        (tmp_path / "imagenet" / "val" / name).mkdir(parents=True)
        Image.new("RGB", (60, 50)).save(tmp_path / "imagenet" / "val" / name / "x.png")
    streams = [{"name": "benign", "corruptions": ["brightness"]}]
    for name, prepared in (("photo_model", False), ("small_photo_model", True)):
        models = [{"name": name, "load": f"own_parts:{name}"}]
        cell = one_cell(datasets=["imagenet"], models=models, streams=streams)
        record = run_cell(cell, Shelf(data=tmp_path)).record
        assert record.status == "done", record.error
        assert ("preprocess" in record.data) == prepared
