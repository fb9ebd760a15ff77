"""The record of one benchmark cell: what was run, where, and every number that came out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from sicl.bench.plan.cell import Cell
from sicl.errors import DataError, OptionError

SCHEMA = 2
READ = (1, 2)
"""The schemas that are read: records of schema 1 may lack the digest."""

IDENTITY = ("dataset", "model", "method", "stream", "corruption", "severity", "seed")
"""The fields that name a cell."""


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
        timing: seconds: `load_s` and `run_s`, in this `waiting_for_data_s`, `adapt_s`, and `calibrate_s` by calibrator.
        data: provenance of the data and weights.
        counters: what the adapter counted: updates, samples kept for them, resets (SAR's recoveries).
        schema: the version of this format; the file also has a `digest` of all this.
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

    @property
    def cell_id(self) -> str:
        """The id of the cell that this is the result of; empty if the configuration is incomplete."""
        try:
            return Cell({key: value for key, value in self.spec.items() if key != "resolved"}).id
        except (KeyError, TypeError, AttributeError):
            return ""

    def to_json(self) -> str:
        """Return the record as one JSON object with a digest of its content.

        Raises:
            ValueError: it has what JSON has not: NaN, infinity, half a character, an object. Missing values are None.
        """
        text = json.dumps(asdict(self), allow_nan=False, separators=(",", ":"))
        text.encode()
        return f'{text[:-1]},"digest":"{_digest(json.loads(text))}"}}\n'

    @classmethod
    def from_json(cls, text: str) -> Record:
        """Read what `to_json` wrote.

        Raises:
            DataError: not JSON, not a record, edited since, or a record of another schema.
        """
        try:
            return cls.from_values(json.loads(text))
        except (ValueError, RecursionError) as error:
            raise DataError(f"A record must be JSON: {error}.") from error

    @classmethod
    def from_values(cls, values: Any) -> Record:
        """Read what `to_json` wrote, once it is no text any more."""
        if not is_record(values):
            raise DataError("A record must be a JSON object with `schema`, `status` and `calibrators`.")
        if values["schema"] not in READ:
            raise DataError(f"This version reads records of schema 1 and 2, got {values['schema']!r}.")
        values = dict(values)
        digest = values.pop("digest", None)
        if digest != _digest(values) and (digest is not None or values["schema"] > 1):
            raise DataError("It is not as it was written: its digest is that of another content.")
        known = {item.name for item in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise DataError(
                f"A record has no field {', '.join(unknown)}; known are {', '.join(sorted(known))}."
            )
        try:
            values["segments"] = [tuple(segment) for segment in values.get("segments", [])]
            record = cls(**values)
            record.require_shape()
        except (TypeError, ValueError) as error:
            raise DataError(f"A record lacks fields: {error}.") from error
        return record

    def require_shape(self) -> None:
        """Raise `TypeError` unless every field is of its type, as far as readers rely on it."""
        for names, wanted in _SHAPE.items():
            for name in names:
                value = getattr(self, name)
                if not isinstance(value, wanted) or isinstance(value, bool):
                    raise TypeError(f"`{name}` is {type(value).__name__}")
        if not all(isinstance(row, dict) for row in self.calibrators.values()):
            raise TypeError("`calibrators` must hold tables")


_NONE = type(None)
_SHAPE: dict[tuple[str, ...], Any] = {
    ("dataset", "model", "method", "stream"): str,
    ("seed", "n", "n_ood"): int,
    ("corruption", "error"): (str, _NONE),
    ("severity",): (int, _NONE),
    ("accuracy",): (int, float, _NONE),
    ("calibrators", "spec", "environment", "timing", "data"): dict,
}


def _digest(values: Mapping[str, Any]) -> str:
    """Return a checksum of what a record says, whatever its layout; where and how long it ran is left out.

    So two runs of one cell that come to the same result have the same.
    """
    content = {key: value for key, value in values.items() if key not in ("environment", "timing")}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:32]


def is_record(values: object) -> bool:
    """Return whether a JSON value looks like a record of any schema."""
    return isinstance(values, Mapping) and {"schema", "status", "calibrators"} <= values.keys()
