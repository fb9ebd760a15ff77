"""The run over a folder: batches through model, calibrator and monitor, resumed where it was stopped."""

from __future__ import annotations

import hashlib
import json
import math
import os
import pickle
import random
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import sicl
from sicl.adapt import METHODS
from sicl.calibrate import CALIBRATORS
from sicl.errors import DataError, OptionError, reason, require_choice, require_positive
from sicl.models.zoo import count_classes, load_model
from sicl.monitor import Monitor, Monitored
from sicl.predict.outcome import Outcome, Row, read_rows
from sicl.predict.pictures import class_names, find_pictures, preprocess_of, read_batch, true_classes
from sicl.selective import DELTA, require_share
from sicl.types import SourceData

SAVE_EVERY = 20.0
"""Seconds between two saves of a run."""
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class FolderJob:
    """A model, a folder, and how to treat it.

    Args:
        model: what `load_model` takes.
        images: the folder; pictures in folders below count too.
        out: where results go; the same folder goes on where a run stopped.
        method: the adaptation method, "source" for none.
        calibrator: where the confidence comes from.
        risk: the error rate allowed among the accepted.
        delta: how often the accepted may err more often than at `risk`; None: they may, but not in the mean.
        labels: a CSV file with columns file and label.
        classes: a text file with a class name a line.
        source: a folder of pictures of the kind the network knows, held out from its training.
        arch: the architecture of a checkpoint that does not say it.
        size: pixels a side, where the model has no preprocessing of its own.
        batch: pictures a batch.
        order: "shuffled", because adaptation suffers from folders sorted by class, or "name": as they came.
        device: where the model runs.
    """

    model: str
    images: Path
    out: Path
    method: str = "source"
    calibrator: str = "sicl"
    risk: float = 0.05
    delta: float | None = DELTA
    labels: Path | None = None
    classes: Path | None = None
    source: Path | None = None
    arch: str | None = None
    size: int | None = None
    batch: int = 64
    order: str = "shuffled"
    device: str = "cpu"

    def __post_init__(self) -> None:
        require_choice(METHODS, method=self.method)
        require_choice(CALIBRATORS, calibrator=self.calibrator)
        require_choice(("shuffled", "name"), order=self.order)
        require_positive(batch=self.batch, size=1 if self.size is None else self.size)
        require_share(risk=self.risk, delta=DELTA if self.delta is None else self.delta)

    @property
    def called(self) -> str:
        """Return the model's name for people: a file's without its folders."""
        return Path(self.model).stem if _stat(Path(self.model)) else self.model

    @property
    def key(self) -> dict[str, Any]:
        """Return what predictions depend on: not the risk, the labels, or where results go."""
        own = asdict(self)
        return {
            name: str(own[name]) for name in sorted(own.keys() - {"out", "risk", "delta", "labels", "device"})
        }


def run_job(job: FolderJob, progress: Progress | None = None) -> Outcome:
    """Predict every picture, or go on where an earlier run stopped; write nothing but the resume file.

    Raises:
        DataError, OptionError: a folder, file or name is not what it should be.
    """
    files = find_pictures(job.images)
    model = load_model(job.model, arch=job.arch, device=job.device)
    n_classes = count_classes(model)
    if n_classes is None:
        raise OptionError(
            f"`model` {job.model!r} does not say how many classes it has; wrap it in code instead."
        )
    names = class_names(model, n_classes, job.classes, demo=job.model == "demo")
    truth, how = true_classes(files, names, job.labels)
    # Last: a wrong name leaves no empty folder behind.
    _claim(job)
    started = time.perf_counter()
    rows = _finished(job, files)
    if rows is None:
        rows = _Run(job, model, files, names).finish(progress)
    elif progress is not None:
        progress(len(files), len(files))
    rows = [_with_truth(row, names[truth[row.file]] if row.file in truth else "") for row in rows]
    facts = {"labels": how, "seconds": round(time.perf_counter() - started, 1), "version": sicl.__version__}
    facts |= {"n_classes": n_classes, "called": job.called}
    described = {**{k: v for k, v in asdict(job).items() if v is not None}, **facts}
    return Outcome.of(
        rows,
        job.risk,
        delta=job.delta,
        facts={k: v if isinstance(v, int | float) else str(v) for k, v in described.items()},
    )


def write_outcome(outcome: Outcome, job: FolderJob, page: str) -> tuple[Path, Path]:
    """Write predictions.csv and index.html, each aside and renamed; return their paths."""
    table, html, about = (job.out / name for name in ("predictions.csv", "index.html", "run.json"))
    run = json.dumps({"key": job.key, "files": _digest(job, [row.file for row in outcome.rows])}, indent=1)
    # The page last: with the other two in place it can be made again without predicting.
    for path, text in ((table, outcome.to_csv()), (about, run), (html, page)):
        part = path.with_name(path.name + ".part")
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise DataError(
                f"{path} cannot be written ({error.strerror or error}); make room and give the same command again, "
                "which goes on from what was saved."
            ) from error
    _resume_file(job).unlink(missing_ok=True)
    return table, html


def _resume_file(job: FolderJob) -> Path:
    return job.out / "resume.pt"


def _claim(job: FolderJob) -> None:
    """Make the folder, or say that it holds another run."""
    try:
        job.out.mkdir(parents=True, exist_ok=True)
        about = job.out / "run.json"
        key = json.loads(about.read_text(encoding="utf-8"))["key"] if about.exists() else job.key
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"`out` {job.out} cannot be used ({error}); give another folder.") from error
    if key != job.key:
        changed = ", ".join(name for name in job.key if key.get(name) != job.key[name])
        raise OptionError(f"`out` {job.out} holds a run with another {changed}; give another folder.")


def _digest(job: FolderJob, files: list[str]) -> str:
    """Return what stands for the pictures and the checkpoint as they are: names, sizes and times of change."""
    paths = [*(job.images / file for file in sorted(files)), Path(job.model)]
    lines = [
        f"{path} {stat.st_size} {stat.st_mtime_ns}" if (stat := _stat(path)) else str(path) for path in paths
    ]
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _finished(job: FolderJob, files: list[str]) -> list[Row] | None:
    about, table = job.out / "run.json", job.out / "predictions.csv"
    if not about.exists() or not table.exists():
        return None
    same = json.loads(about.read_text(encoding="utf-8")).get("files") == _digest(job, files)
    return read_rows(table) if same else None


def _with_truth(row: Row, truth: str) -> Row:
    return Row(**{**asdict(row), "truth": truth})


class _Run:
    """One pass over the files, batch by batch."""

    def __init__(
        self, job: FolderJob, model: torch.nn.Module, files: list[str], names: tuple[str, ...]
    ) -> None:
        self.job, self.names = job, names
        self.preprocess = preprocess_of(model, job.size)
        self.order = list(files)
        if job.order == "shuffled":
            random.Random(0).shuffle(self.order)
        adapter = METHODS[job.method]().attach(model, source=self._source())
        trusted = CALIBRATORS[job.calibrator]().attach(adapter, source=self._source())
        self.monitored: Monitored = Monitor().attach(trusted, source=self._source())
        self.rows: list[Row] = []
        self.unsaved = False

    def finish(self, progress: Progress | None) -> list[Row]:
        """Return all rows, those of an earlier, stopped run included."""
        self._resume()
        saved = time.monotonic()
        while len(self.rows) < len(self.order):
            if progress is not None:
                progress(len(self.rows), len(self.order))
            left = len(self.order) - len(self.rows)
            # No last batch of one picture: batch norms could not take it.
            n = left if left <= self.job.batch + 1 else self.job.batch
            self.rows += self._batch(self.order[len(self.rows) : len(self.rows) + n])
            if time.monotonic() - saved > SAVE_EVERY:
                self._save()
                saved = time.monotonic()
        self._save()
        if progress is not None:
            progress(len(self.rows), len(self.order))
        return self.rows

    def _batch(self, files: list[str]) -> list[Row]:
        images, places, unread = read_batch([self.job.images / file for file in files], self.preprocess)
        rows = {i: Row(files[i], -1, "", 0.0, note=reason) for i, reason in unread.items()}
        if images is not None:
            out = self.monitored(images)
            familiar = self.monitored.window.columns.get("familiarity")
            for k, i in enumerate(places):
                label, confidence = int(out.labels[k]), float(out.confidence[k])
                near = None if familiar is None else float(familiar[k - len(places)])
                near = None if near is None or math.isnan(near) else round(near, 4)
                rows[i] = Row(
                    files[i], label, self.names[label], confidence, familiarity=near, alarm=out.alarm
                )
        return [rows[i] for i in range(len(files))]

    def _source(self) -> SourceData | None:
        if self.job.source is None:
            return None
        if not hasattr(self, "_known"):
            files = find_pictures(self.job.source)[:1024]
            truth, _ = true_classes(files, self.names, None)
            images, places, _ = read_batch([self.job.source / file for file in files], self.preprocess)
            if images is None:
                raise DataError(f"`source` {self.job.source} holds no picture that can be read.")
            labels = torch.tensor([truth.get(files[i], 0) for i in places])
            self._known = SourceData(images.to(self.job.device), labels.to(self.job.device))
        return self._known

    def _save(self) -> None:
        path = _resume_file(self.job)
        part = path.with_name(path.name + ".part")
        files = _digest(self.job, self.order)
        state = {"key": self.job.key, "files": files, "monitor": self.monitored.state_dict()}
        try:
            torch.save({**state, "rows": [asdict(row) for row in self.rows]}, part)
            part.replace(path)
        except (OSError, RuntimeError) as error:  # Torch's zip writer raises the latter on a full disk.
            part.unlink(missing_ok=True)
            if not self.unsaved:
                why = reason(error)
                warnings.warn(f"{path} cannot be written ({why}); the run goes on unsaved.", stacklevel=2)
            self.unsaved = True

    def _resume(self) -> None:
        path = _resume_file(self.job)
        if not path.exists():
            return
        try:
            state = torch.load(path, map_location=self.job.device, weights_only=True)
            if state["key"] != self.job.key or state["files"] != _digest(self.job, self.order):
                return
            self.monitored.load_state_dict(state["monitor"])
            self.rows = [Row(**row) for row in state["rows"]]
        except (
            OSError,
            RuntimeError,
            KeyError,
            TypeError,
            ValueError,
            EOFError,
            pickle.PickleError,
        ) as error:
            raise DataError(
                f"{path} is damaged ({type(error).__name__}); delete it to begin again."
            ) from error
