"""The record of one benchmark cell: what was run, where, and every number that came out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from sicl.errors import DataError, OptionError

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One cell (data set, model, method, stream, seed), run once for all calibrators.

    Args:
        dataset: for example "cifar10-c".
        model: for example "resnet18".
        method: for example "tent".
        stream: "benign", "dynamic", "noisy", "continual", "mixed".
        seed: the seed of the whole cell.
        corruption: the corruption of a benign or noisy stream; None for streams of several.
        severity: the severity of the corruption.
        status: "done", or "failed": a failed cell has an `error` and no metrics.
        error: one sentence on why the cell failed.
        accuracy: the share of right labels among the `n` in-distribution samples.
        n: in-distribution samples.
        n_ood: out-of-distribution samples.
        segments: (domain, end) of every run of one domain, in stream order.
        calibrators: the metrics of every calibrator, by name; see docs/metrics.md.
        spec: the complete configuration.
        environment: versions, device, seeds.
        timing: seconds by phase.
        data: provenance of the data and weights.
        counters: what the adapter counted: updates, samples kept for them, resets (SAR's recoveries).
        schema: the version of this format.
    """

    dataset: str
    model: str
    method: str
    stream: str
    seed: int
    corruption: str | None = None
    severity: int | None = None
    status: Literal["done", "failed"] = "done"
    error: str | None = None
    accuracy: float | None = None
    n: int = 0
    n_ood: int = 0
    segments: list[Any] = field(default_factory=list)
    calibrators: dict[str, dict[str, Any]] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    timing: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.status not in ("done", "failed"):
            raise OptionError(f"`status` must be 'done' or 'failed', got {self.status!r}.")
        if self.status == "failed" and (not self.error or self.calibrators or self.accuracy is not None):
            raise OptionError("A failed `Record` must have an `error` and no metrics.")

    @property
    def label(self) -> str:
        """Return a short unique name: "cifar10-c / resnet18 / tent / benign fog / seed 0"."""
        level = "" if self.severity is None else f" {self.severity}"
        what = f"{self.stream} {self.corruption}{level}" if self.corruption else self.stream
        return f"{self.dataset} / {self.model} / {self.method} / {what} / seed {self.seed}"

    def to_json(self) -> str:
        """Return the record as one JSON object; NaN and infinity are refused, missing values are null."""
        return json.dumps(asdict(self), allow_nan=False, separators=(",", ":")) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Read what `to_json` wrote.

        Raises:
            DataError: not JSON, not a record, or a record of another schema.
        """
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise DataError(f"A record must be JSON: {error}.") from error
        if not is_record(values):
            raise DataError("A record must be a JSON object with `schema`, `status` and `calibrators`.")
        if values["schema"] != SCHEMA:
            raise DataError(f"This version reads records of schema {SCHEMA}, got {values['schema']!r}.")
        known = {item.name for item in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise DataError(
                f"A record has no field {', '.join(unknown)}; known are {', '.join(sorted(known))}."
            )
        values["segments"] = [tuple(segment) for segment in values.get("segments", [])]
        try:
            return cls(**values)
        except TypeError as error:
            raise DataError(f"A record lacks fields: {error}.") from error


def is_record(values: object) -> bool:
    """Return whether a JSON value looks like a record of any schema."""
    return isinstance(values, Mapping) and {"schema", "status", "calibrators"} <= values.keys()


def load_records(folder: str | Path) -> list[Record]:
    """Read every record under `folder` (`*.json`, at any depth), sorted by path.

    JSON files that are no records (a plan, say) are left alone; a damaged one is an error.

    Raises:
        DataError: the folder is missing, holds no record, or holds a damaged JSON file.
    """
    root = Path(folder)
    if not root.is_dir():
        raise DataError(f"`{root}` is no folder. Give the folder that `sicl bench` wrote its records into.")
    records = []
    for path in sorted(root.rglob("*.json")):
        text = path.read_text(encoding="utf-8")
        try:
            if is_record(json.loads(text)):
                records.append(Record.from_json(text))
        except (json.JSONDecodeError, DataError) as error:
            raise DataError(
                f"`{path}` cannot be read: {error} Remove the file or run its cell again."
            ) from error
    if not records:
        raise DataError(f"`{root}` holds no records (`*.json`). Run a benchmark into it first.")
    return records


def planned_cells(folder: str | Path) -> int | None:
    """Return how many cells the folder's plan has, or None unless exactly one plan lies beside the records."""
    plans = [json.loads(path.read_text(encoding="utf-8")) for path in Path(folder).glob("plan-*.json")]
    counts = [
        plan["cells"] for plan in plans if isinstance(plan, Mapping) and isinstance(plan.get("cells"), int)
    ]
    return counts[0] if len(counts) == 1 else None
