"""The recorder's numbers are the metrics', records round-trip, and files are whole or absent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sicl import metrics
from sicl.bench.run.record import Record, Recorder, load_records, record_from_predictions
from sicl.data.files import write_atomic
from sicl.errors import DataError, InputError, OptionError
from sicl.types import OOD_LABEL, Batch, Prediction

CELL: dict[str, Any] = {
    "dataset": "cifar10-c",
    "model": "resnet18",
    "method": "tent",
    "stream": "noisy",
    "seed": 3,
    "corruption": "fog",
    "severity": 5,
}
DETAILS: dict[str, Any] = {
    "spec": {"lr": 0.001},
    "environment": {"torch": "2.x"},
    "timing": {"adapt": 1.5},
    "data": {"source": "embedded"},
}


def batches(n: int = 640, size: int = 64, ood: bool = True) -> list[tuple[Batch, dict[str, Prediction]]]:
    """Return a stream of two domains with every tenth sample out of distribution, and two calibrators."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for start in range(0, n, size):
        labels = torch.randint(0, 10, (size,), generator=generator)
        right = torch.rand(size, generator=generator) < 0.7
        predicted = torch.where(right, labels, (labels + 1) % 10)
        if ood:
            labels[::10] = OOD_LABEL
        domain = "fog" if start < n // 2 else "snow"
        logits = torch.zeros(size, 10)
        sure = Prediction(predicted, torch.rand(size, generator=generator), logits)
        votes = Prediction(predicted, torch.randint(0, 21, (size,), generator=generator) / 20, logits)
        made.append(
            (Batch(torch.zeros(size, 3, 1, 1), labels, (domain,) * size), {"softmax": sure, "sicl": votes})
        )
    return made


def finished(parts: list[tuple[Batch, dict[str, Prediction]]]) -> tuple[Recorder, Record]:
    """Return a recorder that has seen `parts`, and its record."""
    recorder = Recorder(**CELL)
    for batch, predictions in parts:
        recorder.add(batch, predictions)
    return recorder, recorder.finish(**DETAILS)


def test_every_metric_of_a_record_is_the_function_of_that_name() -> None:
    """Out-of-distribution samples are left out of all but `ood_auroc`."""
    parts = batches()
    _, record = finished(parts)
    labels = torch.cat([batch.labels for batch, _ in parts])
    known = labels != OOD_LABEL
    confidence = torch.cat([said["sicl"].confidence for _, said in parts])
    correct = (torch.cat([said["sicl"].labels for _, said in parts]) == labels)[known]
    numbers, inside = record.calibrators["sicl"], confidence[known]
    assert (record.n, record.n_ood) == (int(known.sum()), int((~known).sum()))
    assert record.accuracy == pytest.approx(float(correct.double().mean()))
    assert numbers["ece"] == metrics.expected_calibration_error(inside, correct)
    assert numbers["ece_mass"] == metrics.expected_calibration_error(inside, correct, bins="mass")
    assert numbers["mce"] == metrics.maximum_calibration_error(inside, correct)
    assert numbers["brier"] == metrics.brier_score(inside, correct)
    assert numbers["nll"] == metrics.negative_log_likelihood(inside, correct)
    assert numbers["auroc"] == metrics.auroc(inside, correct)
    assert numbers["aurc"] == metrics.aurc(inside, correct)
    assert (numbers["ece_right"], numbers["ece_wrong"]) == metrics.ece_by_correctness(inside, correct)
    assert numbers["mean_confidence"] == pytest.approx(float(inside.double().mean()))
    assert numbers["ood_auroc"] == metrics.auroc(confidence, known)
    assert sum(numbers["reliability"]["count"]) == record.n


def test_cumulative_ece_steps_with_the_batches() -> None:
    """The record's value is that of `CumulativeEce` fed batch by batch."""
    parts = batches()
    _, record = finished(parts)
    meter = metrics.CumulativeEce()
    for batch, said in parts:
        known = batch.labels != OOD_LABEL
        meter.update(said["softmax"].confidence[known], (said["softmax"].labels == batch.labels)[known])
    assert record.calibrators["softmax"]["cumulative_ece"] == pytest.approx(meter.compute(), abs=1e-12)


def test_domains_are_measured_apart_and_kept_in_order() -> None:
    """Two halves of the stream are two domains, two segments and two rows."""
    _, record = finished(batches(ood=False))
    table = record.calibrators["softmax"]["by_domain"]
    assert record.segments == [("fog", 320), ("snow", 640)]
    assert {name: row["n"] for name, row in table.items()} == {"fog": 320, "snow": 320}
    mean = sum(row["accuracy"] for row in table.values()) / 2
    assert mean == pytest.approx(record.accuracy)


def test_over_time_holds_the_means_of_each_window() -> None:
    """Accuracy, confidence and ECE at every end are those of the samples of the window before it."""
    parts = batches(640, ood=False)
    _, record = finished(parts)
    confidence = torch.cat([said["softmax"].confidence for _, said in parts])
    correct = torch.cat([said["softmax"].labels == batch.labels for batch, said in parts])
    time = record.calibrators["softmax"]["over_time"]
    assert time["window"] == 256
    for i in (0, len(time["end"]) // 2, -1):
        window = slice(time["end"][i] - 256, time["end"][i])
        assert time["accuracy"][i] == pytest.approx(float(correct[window].double().mean()), abs=1e-6)
        assert time["confidence"][i] == pytest.approx(float(confidence[window].double().mean()), abs=1e-6)
        ece = metrics.expected_calibration_error(confidence[window], correct[window])
        assert time["ece"][i] == pytest.approx(ece, abs=1e-6)


def test_curves_stay_short_and_end_with_the_whole_stream() -> None:
    """However long the stream, a record holds at most 50 points a curve."""
    _, record = finished(batches(6400, ood=False))
    numbers = record.calibrators["sicl"]
    time, curve = numbers["over_time"], numbers["risk_coverage"]
    assert len(time["end"]) <= 50
    assert len(curve["risk"]) <= 50
    assert (time["window"], time["end"][-1]) == (320, 6400)
    assert curve["coverage"][-1] == 1.0
    assert curve["risk"][-1] == pytest.approx(1 - numbers["accuracy"], abs=1e-6)


def test_saved_predictions_give_the_identical_record(tmp_path: Path) -> None:
    """Every metric can be recomputed from the file, bit for bit."""
    recorder, record = finished(batches())
    path = recorder.save_predictions(tmp_path / "deep" / "cell.npz")
    assert record_from_predictions(path) == record
    assert sorted(file.name for file in path.parent.iterdir()) == ["cell.npz"]


def test_a_calibrator_with_its_own_labels_keeps_them(tmp_path: Path) -> None:
    """An ensemble may predict by itself; its accuracy is then its own, also after saving."""
    recorder = Recorder(**CELL)
    labels = torch.tensor([0, 1, 2, 3])
    batch = Batch(torch.zeros(4, 3, 1, 1), labels, ("fog",) * 4)
    own = Prediction((labels + 1) % 4, torch.full((4,), 0.5), torch.zeros(4, 4))
    recorder.add(batch, {"softmax": Prediction(labels, torch.ones(4), torch.zeros(4, 4)), "mc_dropout": own})
    record = recorder.finish()
    assert [numbers["accuracy"] for numbers in record.calibrators.values()] == [1.0, 0.0]
    assert record_from_predictions(recorder.save_predictions(tmp_path / "x.npz")) == record


def test_undefined_metrics_are_null_not_nan() -> None:
    """All right: no AUROC and no ECE of the wrong. All out of distribution: no accuracy."""
    labels = torch.zeros(4, dtype=torch.long)
    said = {"softmax": Prediction(labels, torch.ones(4), torch.zeros(4, 2))}
    for truth, absent in ((labels, ("auroc", "ece_wrong", "ood_auroc")), (labels + OOD_LABEL, ("accuracy",))):
        recorder = Recorder(**CELL)
        recorder.add(Batch(torch.zeros(4, 3, 1, 1), truth, ("fog",) * 4), said)
        numbers = json.loads(recorder.finish().to_json())["calibrators"]["softmax"]
        assert [numbers[name] for name in absent] == [None] * len(absent)


def test_records_survive_json() -> None:
    """`from_json(to_json(record))` is the record, done or failed."""
    recorder, record = finished(batches())
    failed = recorder.failed("CUDA out of memory.", spec={"lr": 1})
    for one in (record, failed):
        assert Record.from_json(one.to_json()) == one
    assert (failed.status, failed.calibrators, failed.accuracy) == ("failed", {}, None)
    assert failed.label == "cifar10-c / resnet18 / tent / noisy fog 5 / seed 3"


@pytest.mark.parametrize(
    "change",
    [{"status": "lost"}, {"status": "failed"}, {"status": "failed", "error": "x", "accuracy": 0.5}],
)
def test_a_failed_record_has_a_reason_and_no_metrics(change: dict[str, Any]) -> None:
    """No record is half failed."""
    with pytest.raises(OptionError):
        Record(**{**CELL, **change})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "JSON"),
        ("[]", "calibrators"),
        ('{"schema":3,"status":"done","calibrators":{}}', "schema 1 and 2, got 3"),
        ('{"schema":1,"status":"done","calibrators":{},"colour":1}', "no field colour"),
        ('{"schema":1,"status":"done","calibrators":{}}', "lacks"),
    ],
)
def test_a_damaged_record_says_what_is_wrong(text: str, message: str) -> None:
    """Each kind of damage has its own sentence."""
    with pytest.raises(DataError, match=message):
        Record.from_json(text)


def test_load_records_reads_records_only_and_stops_at_damage(tmp_path: Path) -> None:
    """Other JSON is left alone, broken JSON is not, and an empty folder is an error."""
    with pytest.raises(DataError, match="no records"):
        load_records(tmp_path)
    with pytest.raises(DataError, match="no folder"):
        load_records(tmp_path / "missing")
    (tmp_path / "plan.json").write_text("{}")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.json").write_text(Record(**CELL).to_json())
    assert load_records(tmp_path) == [Record(**CELL)]
    (tmp_path / "half.json").write_text('{"schema":1')
    with pytest.raises(DataError, match=r"half\.json"):
        load_records(tmp_path)


@pytest.mark.parametrize("confidence", [[0.5, float("nan")], [0.5, 1.5], [0.5]])
def test_a_bad_confidence_names_its_calibrator(confidence: list[float]) -> None:
    """NaN, values above 1 and wrong lengths stop the cell, before anything is kept."""
    recorder = Recorder(**CELL)
    labels = torch.tensor([0, 1])
    batch = Batch(torch.zeros(2, 3, 1, 1), labels, ("fog", "fog"))
    with pytest.raises(InputError, match="'transcal'"):
        recorder.add(batch, {"transcal": Prediction(labels, torch.tensor(confidence), torch.zeros(2, 2))})
    with pytest.raises(InputError, match="no samples"):
        recorder.finish()


def test_calibrators_may_not_come_and_go() -> None:
    """A calibrator missing in one batch would silently shorten its stream."""
    recorder = Recorder(**CELL)
    batch, said = batches(64)[0]
    with pytest.raises(InputError, match="at least one"):
        recorder.add(batch, {})
    recorder.add(batch, said)
    with pytest.raises(InputError, match="same calibrators"):
        recorder.add(batch, {"softmax": said["softmax"]})


def test_a_file_of_other_arrays_is_not_predictions(tmp_path: Path) -> None:
    """A wrong or missing file is named."""
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    for name in ("other.npz", "missing.npz"):
        with pytest.raises(DataError, match=name):
            record_from_predictions(tmp_path / name)


def test_an_interrupted_write_leaves_the_old_file_and_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rename is the last step; when anything before it fails nothing changes."""
    path = write_atomic(tmp_path / "new" / "a.txt", "old")

    def broken(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        write_atomic(path, b"new")
    assert path.read_text() == "old"
    assert [file.name for file in path.parent.iterdir()] == ["a.txt"]
