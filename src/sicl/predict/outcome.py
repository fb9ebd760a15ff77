"""What came out of a folder: a row a picture, and the numbers over all of them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sicl.errors import DataError
from sicl.metrics import ReliabilityBins, reliability_bins
from sicl.monitor import Estimate
from sicl.monitor.window import estimate_accuracy
from sicl.selective import DELTA, bounded_threshold, expected_threshold


@dataclass(frozen=True)
class Row:
    """A picture: what was predicted, how far it can be trusted, and what is true where that is known.

    An unread picture has label -1, confidence 0 and a note that says why; `alarm` is the monitor's at that time.
    """

    file: str
    label: int
    name: str
    confidence: float
    accepted: bool = False
    familiarity: float | None = None
    truth: str = ""
    note: str = ""
    alarm: str = ""

    @property
    def read(self) -> bool:
        """Return whether the picture could be read."""
        return self.label >= 0

    @property
    def correct(self) -> bool | None:
        """Return whether the prediction is right, None where that is not known."""
        return self.name == self.truth if self.read and self.truth else None


@dataclass(frozen=True)
class Outcome:
    """All rows of a run, in the order of their files.

    Args:
        rows: one a picture.
        risk: the error rate allowed among the accepted.
        delta: how often the accepted may err more often than that; None: they may, but not in the mean.
        facts: of the run: model, method, calibrator, version, ...
    """

    rows: tuple[Row, ...]
    risk: float
    delta: float | None = DELTA
    facts: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, rows: Sequence[Row], risk: float, *, delta: float | None = DELTA, **options: Any) -> Outcome:
        """Return the outcome, with the pictures accepted that the risk allows; none of an alarmed stretch.

        With `delta`, and where the truth is known for some pictures, these bound the risk of the others.
        """
        trusted = [row for row in rows if row.read and not row.alarm]
        known = [row for row in trusted if row.correct is not None]
        if delta is not None and 0 < len(known) < len(trusted):
            right = torch.tensor([bool(row.correct) for row in known])
            threshold = bounded_threshold(_confidence(known), right, risk=risk, delta=delta)
        else:
            threshold = expected_threshold(_confidence(trusted), risk, delta=delta)
        marked = [
            replace(row, accepted=row.read and not row.alarm and row.confidence >= threshold) for row in rows
        ]
        return cls(tuple(sorted(marked, key=lambda row: row.file)), risk, delta, **options)

    @property
    def read(self) -> list[Row]:
        """Return the pictures that could be read."""
        return [row for row in self.rows if row.read]

    @property
    def unread(self) -> list[Row]:
        """Return the others."""
        return [row for row in self.rows if not row.read]

    @property
    def accepted(self) -> list[Row]:
        """Return the pictures to act on."""
        return [row for row in self.rows if row.accepted]

    @property
    def promise(self) -> str:
        """Return what is promised of the accepted, in words."""
        held = "in the mean" if self.delta is None else f"with probability {100 * (1 - self.delta):g} %"
        return f"{100 * self.risk:g} % risk, {held}"

    @property
    def bounded_by_labels(self) -> bool:
        """Return whether the risk of the accepted is bounded by the pictures whose truth is known."""
        return self.delta is not None and 0 < len(self.known) < len(self.read)

    @property
    def threshold(self) -> float:
        """Return the least confidence accepted, infinite if none is."""
        return min((row.confidence for row in self.accepted), default=math.inf)

    @property
    def confidence(self) -> NDArray[np.float64]:
        """Return the confidences of the pictures that could be read."""
        return np.array([row.confidence for row in self.read])

    @property
    def alarm(self) -> str:
        """Return the last alarm, empty if there was none."""
        return next((row.alarm for row in reversed(self.rows) if row.alarm), "")

    @property
    def estimate(self) -> Estimate:
        """Return the estimated accuracy; an alarm takes the lower end away."""
        found = estimate_accuracy(self.confidence)
        return found._replace(low=0.0) if self.alarm else found

    @property
    def known(self) -> list[Row]:
        """Return the pictures whose truth is known."""
        return [row for row in self.rows if row.correct is not None]

    @property
    def accuracy(self) -> float | None:
        """Return the share of right predictions where the truth is known."""
        return float(np.mean([bool(row.correct) for row in self.known])) if self.known else None

    @property
    def realised_risk(self) -> float | None:
        """Return the error rate of the accepted whose truth is known, None if there are none."""
        right = [bool(row.correct) for row in self.known if row.accepted]
        return float(1 - np.mean(right)) if right else None

    def reliability(self) -> ReliabilityBins:
        """Return the reliability bins of the pictures whose truth is known."""
        confidence = torch.tensor([row.confidence for row in self.known])
        return reliability_bins(
            confidence, torch.tensor([bool(row.correct) for row in self.known]), n_bins=15
        )

    def share_of_errors(self, n: int) -> float:
        """Return the share of all expected errors that lies in the n least trusted pictures."""
        doubt = np.sort(1 - self.confidence)[::-1]
        return float(doubt[:n].sum() / max(doubt.sum(), 1e-12))

    def to_csv(self) -> str:
        """Return the rows as a CSV table."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([field.name for field in fields(Row)])
        for row in self.rows:
            values = replace(row, confidence=round(row.confidence, 6))
            writer.writerow(["" if value is None else value for value in astuple(values)])
        return out.getvalue()


def _confidence(rows: Sequence[Row]) -> Tensor:
    return torch.tensor([row.confidence for row in rows], dtype=torch.float64)


def read_rows(path: Path) -> list[Row]:
    """Return the rows of a predictions.csv.

    Raises:
        DataError: the file is not one that `sicl predict` wrote.
    """
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            return [
                Row(
                    file=row["file"],
                    label=int(row["label"]),
                    name=row["name"],
                    confidence=float(row["confidence"]),
                    familiarity=float(row["familiarity"]) if row["familiarity"] else None,
                    truth=row["truth"],
                    note=row["note"],
                    alarm=row["alarm"],
                )
                for row in csv.DictReader(stream)
            ]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path} is no table of `sicl predict` ({error!r}); give another `--out`.") from error
