"""Run one cell: one adaptation over one stream, seen by all calibrators; one record out."""

from __future__ import annotations

import errno
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, is_dataclass, replace
from typing import Any

import torch

from sicl.adapt import Method
from sicl.bench.plan import registry
from sicl.bench.plan.cell import Cell
from sicl.bench.run.machine import environment
from sicl.bench.run.record import Record, Recorder
from sicl.bench.run.shelf import Shelf, require_classes
from sicl.bench.run.timed import TimedPanel
from sicl.calibrate import Calibrator, Panel
from sicl.data.dataset import Dataset
from sicl.errors import InputError, SetupError, SiclError
from sicl.metrics import CumulativeEce
from sicl.models.preprocess import Preprocess, preprocess_of
from sicl.streams import OpenStream, make_stream
from sicl.types import OOD_LABEL, Batch, Prediction


@dataclass(frozen=True)
class Progress:
    """How far a cell has come.

    Args:
        batches: batches done.
        total: batches of the stream.
        accuracy: share of right labels so far, in [0, 1]; None before the first in-distribution sample.
        ece: the last calibrator's cumulative ECE so far, in [0, 1].
    """

    batches: int
    total: int
    accuracy: float | None
    ece: float | None


OnBatch = Callable[[Progress], None]

FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.EIO)
"""A full or read-only disk, too many open files, a device that does not answer."""


@dataclass(frozen=True)
class CellOutcome:
    """What a cell leaves behind.

    Args:
        record: its result, or why there is none.
        predictions: the bytes of its predictions file, if that was asked for.
        spent: the process that ran it cannot run another: its GPU does not answer it any more.
        fault: what is wrong with the set-up; the record is then nobody's, and no cell can run before it is mended.
    """

    record: Record
    predictions: bytes | None = None
    spent: bool = False
    fault: str | None = None


def run_cell(
    cell: Cell, shelf: Shelf | None = None, *, predictions: bool = False, on_batch: OnBatch | None = None
) -> CellOutcome:
    """Run a cell from a fresh state; an error becomes a failed record.

    Args:
        cell: what to run.
        shelf: what is loaded already, and where data and device are; None makes one for the CPU.
        predictions: also return every sample's prediction.
        on_batch: called after every batch.
    """
    shelf = shelf or Shelf()
    recorder = Recorder(**cell.identity)
    started = time.perf_counter()
    try:
        with _current(shelf.device):
            outcome = _run(cell, shelf, recorder, predictions, on_batch)
        _require_json(outcome.record)
        return outcome
    except Exception as error:
        fault = setup_fault(error)
        # A cell must never vanish from an average: whatever happened is kept as its result.
        reason = str(error) if isinstance(error, SiclError) else f"{type(error).__name__}: {error}"
        reason, trace = reason.strip() or type(error).__name__, traceback.format_exc(limit=-4)
    # Out of the handler: the error held the cell's tensors, and a GPU's memory is free only without them.
    spent = not _answers(shelf.device)
    details = {
        "spec": dict(cell.spec),
        "environment": {**environment(shelf.device), "traceback": trace},
        "timing": {"total_s": time.perf_counter() - started},
    }
    return CellOutcome(recorder.failed(reason, **details), spent=spent, fault=fault)


def _require_json(record: Record) -> None:
    """Raise `InputError` if a record cannot be kept; what calibrations report themselves is the usual reason."""
    try:
        record.to_json()
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"The record cannot be written as JSON ({error}); let `summary()` and all options be finite plain "
            "numbers, text, and lists and tables of these."
        ) from error


def setup_fault(error: BaseException) -> str | None:
    """Return a sentence if an error is the machine's fault, not the cell's: no cell could do better now."""
    if isinstance(error, SetupError):
        return str(error)
    if isinstance(error, OSError) and error.errno in FAULTS:
        where = f" `{error.filename}`" if error.filename else ""
        return f"{error.strerror}{where}; mend that, and the same command goes on where it stopped."
    return None


def _run(
    cell: Cell, shelf: Shelf, recorder: Recorder, predictions: bool, on_batch: OnBatch | None
) -> CellOutcome:
    started = time.perf_counter()
    with _reproducible():
        stage = _Stage.set(cell, shelf)
        loaded = time.perf_counter()
        waiting = _play(stage, recorder, on_batch)
        played = time.perf_counter()
    images = {"images": checksums} if (checksums := stage.stream.checksums) else {}
    record = recorder.finish(
        spec={**cell.spec, "resolved": stage.resolved},
        environment=environment(shelf.device),
        timing={
            "load_s": loaded - started,
            "run_s": played - loaded,
            "waiting_for_data_s": waiting,
            **stage.panel.timing(),
        },
        data={**stage.provenance, **images},
        counters=stage.panel.adapter.counters,
    )
    record = replace(record, calibrators=_with_summaries(record.calibrators, stage.panel))
    return CellOutcome(record, recorder.predictions() if predictions else None)


@dataclass(frozen=True)
class _Stage:
    """Everything a cell plays with, loaded."""

    stream: OpenStream
    panel: TimedPanel
    resolved: dict[str, Any]
    provenance: dict[str, Any]

    @classmethod
    def set(cls, cell: Cell, shelf: Shelf) -> _Stage:
        spec = cell.spec
        dataset = shelf.dataset(spec["dataset"]["name"], spec["dataset"]["split"])
        source = shelf.source(**spec["dataset"]["source"]) if spec["dataset"]["source"] else None
        model, checksum = shelf.model(spec["model"]["load"], spec["model"]["options"])
        require_classes(model, dataset, spec["model"]["load"])
        dataset = _of_its_size(dataset, preprocess_of(model))
        method, calibrators = resolve(spec)
        stream = make_cell_stream(spec["stream"])
        opened = stream.open(dataset, device=shelf.device, cache=shelf.cache, root=shelf.data)
        adapter = method.attach(model, source=source)
        provenance = {
            **dataset.provenance,
            "fingerprint": dataset.fingerprint,
            "weights": {"load": spec["model"]["load"], "sha256": checksum},
        }
        if spec["dataset"]["source"]:
            provenance["source"] = spec["dataset"]["source"]
        panel = TimedPanel(calibrators, adapter, source=source)
        resolved = {
            "method": _fields(method),
            "calibrators": {label: _fields(calibrator) for label, calibrator in calibrators.items()},
        }
        return cls(opened, panel, resolved, provenance)


def _of_its_size(dataset: Dataset, preprocess: Preprocess | None) -> Dataset:
    """Return pictures as the model wants them; ImageNet's stay as its protocol says where the size is the model's."""
    fits = preprocess is None or dataset.size == preprocess.size
    return dataset if fits and not dataset.name.startswith("folder:") else dataset.prepared(preprocess)


def _play(stage: _Stage, recorder: Recorder, on_batch: OnBatch | None) -> float:
    """Run the stream through the panel; returns the seconds spent waiting for batches."""
    waiting, tally = 0.0, _Tally()
    batches = iter(stage.stream)
    for done in range(1, len(stage.stream) + 1):
        before = time.perf_counter()
        batch = next(batches)
        waiting += time.perf_counter() - before
        batch, predicted = fetched(batch, stage.panel(batch.images))
        recorder.add(batch, predicted)
        if on_batch is not None:
            tally.add(batch, list(predicted.values())[-1])
            on_batch(Progress(done, len(stage.stream), tally.accuracy, tally.ece))
    return waiting


def fetched(batch: Batch, predicted: dict[str, Prediction]) -> tuple[Batch, dict[str, Prediction]]:
    """Bring labels and confidences from a GPU with one wait, not one for each: workers share it."""
    if batch.labels.device.type == "cpu":
        return batch, predicted
    rows = [batch.labels, *(v for p in predicted.values() for v in (p.labels, p.confidence))]
    if any(row.shape != batch.labels.shape for row in rows):
        return batch, predicted  # the recorder says what is wrong
    known, *values = torch.stack([row.detach().double() for row in rows]).cpu()
    here = {
        name: replace(prediction, labels=values[2 * i].long(), confidence=values[2 * i + 1].float())
        for i, (name, prediction) in enumerate(predicted.items())
    }
    return replace(batch, labels=known.long()), here


class _Tally:
    """Accuracy and cumulative ECE so far, for those who watch."""

    def __init__(self) -> None:
        self._meter = CumulativeEce()
        self._right = self._known = 0

    def add(self, batch: Batch, prediction: Prediction) -> None:
        labels = batch.labels.cpu()
        inside = labels != OOD_LABEL
        correct = (prediction.labels.cpu() == labels)[inside]
        if len(correct):
            self._meter.update(prediction.confidence.cpu()[inside], correct)
            self._right += int(correct.sum())
            self._known += len(correct)

    @property
    def accuracy(self) -> float | None:
        return self._right / self._known if self._known else None

    @property
    def ece(self) -> float | None:
        return self._meter.compute() if self._known else None


def resolve(spec: Mapping[str, Any]) -> tuple[Method, dict[str, Calibrator]]:
    """Return the method and the calibrators of a cell's spec."""
    made: Method = registry.build(spec["method"], "method")
    calibrators = {label: registry.build(item, "calibrator") for label, item in spec["calibrators"].items()}
    return made, calibrators


def make_cell_stream(spec: Mapping[str, Any]) -> Any:
    """Return the stream spec of a cell."""
    if registry.OWN.fullmatch(spec["name"]):
        return registry.build(spec, "stream")
    return make_stream(spec["name"], **spec["options"])


def _fields(spec: Any) -> dict[str, Any]:
    """Return every option of a method or calibrator as it was used, ready for JSON."""
    values = asdict(spec) if is_dataclass(spec) and not isinstance(spec, type) else {}
    return {"class": type(spec).__name__, **values}


def _with_summaries(rows: Mapping[str, dict[str, Any]], panel: Panel) -> dict[str, dict[str, Any]]:
    """Add the numbers that a calibration reports itself, if it has a `summary()`."""
    found: dict[str, Any] = {
        name: getattr(item, "summary", dict) for name, item in panel.calibrations.items()
    }
    return {name: {**row, **found[name]()} for name, row in rows.items()}


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current one: streams, graphs and kernels that name none must not go to the first."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _answers(device: torch.device) -> bool:
    """Say whether a device still works after an error; memory that a GPU's worker held is the others' again."""
    if device.type != "cuda":
        return True
    try:
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()
    except (RuntimeError, AssertionError):
        # An illegal access or a failed assertion in a kernel: CUDA refuses this process all further work.
        return False
    return True


@contextmanager
def _reproducible() -> Iterator[None]:
    """Make convolutions on a GPU deterministic, so that a cell that is run again gives the same numbers."""
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before
