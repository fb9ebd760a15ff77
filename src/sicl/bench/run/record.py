"""The recorder: collects what calibrators say batch by batch, and turns it into a record."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sicl.bench.run.measure import Samples, measure
from sicl.bench.run.results import load_records
from sicl.bench.run.schema import IDENTITY, Record
from sicl.data.files import write_atomic
from sicl.errors import DataError, InputError
from sicl.types import Batch, Prediction

__all__ = ["Record", "Recorder", "load_records", "record_from_predictions"]

DETAILS = ("spec", "environment", "timing", "data", "counters")


class Recorder:
    """Keeps labels, predictions and confidences of one cell on the CPU until `finish`.

    Args:
        cell: `Record`'s identity: dataset, model, method, stream, seed and, where one applies, corruption
            and severity.
    """

    def __init__(self, **cell: Any) -> None:
        self._blank = Record(**cell)
        self._details: dict[str, dict[str, Any]] = {name: {} for name in DETAILS}
        self._labels: list[NDArray[np.int64]] = []
        self._domains: list[str] = []
        self._predicted: dict[str, list[NDArray[np.int64]]] = {}
        self._confidence: dict[str, list[NDArray[np.float32]]] = {}

    def add(self, batch: Batch, predictions: Mapping[str, Prediction]) -> None:
        """Take in one batch: its labels and domains, and each calibrator's prediction by name.

        Raises:
            InputError: other calibrators than in the first batch, other lengths, or a confidence that is
                NaN or outside [0, 1].
        """
        if self._labels and set(predictions) != set(self._confidence):
            raise InputError(
                f"`predictions` must name the same calibrators in every batch: "
                f"{', '.join(self._confidence)}; got {', '.join(predictions)}."
            )
        if not predictions:
            raise InputError("`predictions` must name at least one calibrator, got none.")
        checked = {name: _checked(name, prediction, len(batch)) for name, prediction in predictions.items()}
        for name, (labels, confidence) in checked.items():
            self._predicted.setdefault(name, []).append(labels)
            self._confidence.setdefault(name, []).append(confidence)
        self._labels.append(batch.labels.detach().cpu().numpy().astype(np.int64))
        self._domains.extend(batch.domains)

    def finish(self, **details: Mapping[str, Any]) -> Record:
        """Compute every metric and return the record; `spec`, `environment` and others of `DETAILS` go into it."""
        self._details = {name: dict(details.pop(name, {})) for name in DETAILS}
        if details:
            raise TypeError(f"a record has no {', '.join(details)}")
        return _record(self._identity(), self._details, self._samples())

    def failed(self, error: str, **details: Mapping[str, Any]) -> Record:
        """Return the record of a cell that failed: its identity, the reason, and no metrics."""
        given: dict[str, Any] = {name: storable(value) for name, value in details.items()}
        return Record(**storable(self._identity()), status="failed", error=storable(error), **given)

    def save_predictions(self, path: str | Path) -> Path:
        """Write `predictions` to a file, atomically."""
        return write_atomic(path, self.predictions())

    def predictions(self) -> bytes:
        """Return every sample's prediction as a compressed `.npz`; call after `finish`.

        `record_from_predictions` makes the same record from it.
        """
        samples = self._samples()
        names = list(samples.confidence)
        domains, codes = np.unique(samples.domains, return_inverse=True)
        arrays: dict[str, NDArray[Any]] = {
            "meta": np.array(json.dumps({"cell": self._identity(), **self._details, "calibrators": names})),
            "labels": samples.labels.astype(np.int32),
            "domains": domains,
            "domain_codes": codes.astype(np.int32),
            "batch_sizes": samples.batch_sizes,
        }
        for i, name in enumerate(names):
            arrays[f"confidence_{i}"] = samples.confidence[name]
            # Calibration does not change labels, so all but the first are usually not worth their bytes.
            if i == 0 or not np.array_equal(samples.predicted[name], samples.predicted[names[0]]):
                arrays[f"predicted_{i}"] = samples.predicted[name].astype(np.int32)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        return buffer.getvalue()

    def _identity(self) -> dict[str, Any]:
        return {name: getattr(self._blank, name) for name in IDENTITY}

    def _samples(self) -> Samples:
        if not self._domains:
            raise InputError("`Recorder` has no samples yet. Call `add` for every batch first.")
        return Samples(
            labels=np.concatenate(self._labels),
            domains=np.array(self._domains),
            batch_sizes=np.array([len(part) for part in self._labels]),
            predicted={name: np.concatenate(parts) for name, parts in self._predicted.items()},
            confidence={name: np.concatenate(parts) for name, parts in self._confidence.items()},
        )


def storable(value: Any) -> Any:
    """Return a value as JSON can hold it; what JSON has not becomes text: the record of a failure must not fail."""
    if isinstance(value, Mapping):
        return {str(storable(key)): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    if value is None or isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()


def record_from_predictions(path: str | Path) -> Record:
    """Compute a cell's record again from what `Recorder.save_predictions` wrote.

    Raises:
        DataError: the file is missing or no such archive.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = dict(archive)
        meta = json.loads(str(arrays["meta"]))
        samples = _samples_of(arrays, meta["calibrators"])
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"`{path}` is no file of saved predictions: {error}.") from error
    return _record(meta["cell"], {name: meta.get(name, {}) for name in DETAILS}, samples)


def _samples_of(arrays: Mapping[str, NDArray[Any]], names: list[str]) -> Samples:
    shared = arrays["predicted_0"].astype(np.int64)
    return Samples(
        labels=arrays["labels"].astype(np.int64),
        domains=arrays["domains"][arrays["domain_codes"]],
        batch_sizes=arrays["batch_sizes"],
        predicted={
            name: arrays.get(f"predicted_{i}", shared).astype(np.int64) for i, name in enumerate(names)
        },
        confidence={name: arrays[f"confidence_{i}"] for i, name in enumerate(names)},
    )


def _record(cell: Mapping[str, Any], details: Mapping[str, Any], samples: Samples) -> Record:
    return Record(**cell, **details, **measure(samples))


def _checked(name: str, prediction: Prediction, length: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    labels = prediction.labels.detach().cpu()
    confidence = prediction.confidence.detach().to("cpu", torch.float32)
    if labels.shape != (length,) or confidence.shape != (length,):
        raise InputError(
            f"Calibrator {name!r} must give one label and confidence a sample, got shapes "
            f"{tuple(labels.shape)} and {tuple(confidence.shape)} for {length} samples."
        )
    bad = int((~((confidence >= 0) & (confidence <= 1))).sum())
    if bad:
        raise InputError(f"Calibrator {name!r} gave {bad} of {length} confidences as NaN or outside [0, 1].")
    return labels.numpy().astype(np.int64), confidence.numpy()
