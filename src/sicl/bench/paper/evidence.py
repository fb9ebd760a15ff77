"""Committed records by the name of their run, and the few numbers that claims are judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Literal

from sicl.bench.run.results import PACKED, load_records
from sicl.bench.run.schema import Record
from sicl.bench.tables.layout import Setting, settings
from sicl.bench.tables.printed import printed_value
from sicl.bench.tables.summary import by, mean_percent
from sicl.errors import DataError

Verdict = Literal["confirmed", "partly", "refuted", "not measured yet"]

MAIN = ("table2", "table3", "table4", "resnet18-dynamic", "resnet50-cifar10-c", "vit-cifar10-c")
"""Runs of the main table's kind; where two have a setting, the one named first counts."""
RESNET18 = ("table3", "table4")
ENTROPY = ("tent", "eata", "sar")
"""The methods whose only loss is the entropy of their predictions."""
OLDER = {"table3": "resnet18-cifar10-c", "table4": "resnet18-cifar100-c"}
"""Runs under earlier names."""
QUICK = "quick"
"""The folder, within that of the results, with the quick runs of the embedded model."""
EMBEDDED = {"table3": "table2", "resnet18-dynamic": "table2"}
"""Which quick run answers for others: the main table's has static and dynamic streams."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What we measured, in a few words, and what it says about the claim."""

    ours: str
    verdict: Verdict


UNKNOWN = Judgement("not measured yet", "not measured yet")


@dataclass
class Evidence:
    """The records under a folder, read when a claim asks for them.

    Args:
        root: the folder, with a folder or a packed file a run.
        names: runs that are kept under another name.
    """

    root: Path
    names: Mapping[str, str] = field(default_factory=lambda: OLDER)
    _read: dict[str, list[Record]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.root.is_dir():
            raise DataError(
                f"`{self.root}` is no folder. Give the folder that holds the runs, such as results/."
            )

    def quick(self) -> Evidence | None:
        """Return the quick runs of the embedded model, or None where there are none."""
        folder = self.root / QUICK
        return Evidence(folder, EMBEDDED) if folder.is_dir() else None

    def place(self, run: str) -> Path | None:
        """Return where a run's records are, or None where there are none."""
        for name in (run, self.names.get(run, run)):
            for path in (self.root / name, self.root / f"{name}{PACKED}"):
                if path.exists():
                    return path
        return None

    def run(self, *names: str) -> list[Record]:
        """Return the finished cells of runs; nothing for a run that was not recorded."""
        found = []
        for name in names:
            if name not in self._read:
                place = self.place(name)
                self._read[name] = [] if place is None else load_records(place)
            found += [record for record in self._read[name] if record.status == "done"]
        return found

    def settings(self, *runs: str, stream: str | None = None) -> list[Setting]:
        """Return the settings of runs, each once: of the first run that has it."""
        found: dict[tuple[str, str, str, str], Setting] = {}
        for run in runs or MAIN:
            for one in settings(self.run(run)):
                found.setdefault((one.stream, one.dataset, one.model, one.method), one)
        return [one for one in found.values() if stream in (None, one.stream)]


def growth(record: Record, calibrator: str = "softmax") -> tuple[float, float] | None:
    """Return the mean sliding-window ECE of a stream's first and last quarter, in %."""
    line = record.calibrators.get(calibrator, {}).get("over_time")
    if not line or len(line["ece"]) < 8:
        return None
    size = len(line["ece"]) // 4
    return 100 * mean(line["ece"][:size]), 100 * mean(line["ece"][-size:])


def difference(records: Sequence[Record], calibrator: str) -> list[float]:
    """Return, for every method, our mean cumulative ECE less the mean of the printed values, in points."""
    found = []
    for part in by(records, lambda r: f"{r.dataset}/{r.method}").values():
        ours = mean_percent(part, calibrator)
        places = {record.corruption for record in part}
        values = [printed_value(part[0], calibrator, place) for place in places]
        printed = [value for value in values if value is not None]
        if ours is not None and printed:
            found.append(ours - mean(printed))
    return found


def judged(value: float, confirmed: float = 1, partly: float = 0.5) -> Verdict:
    """Return the verdict of a value, by default the share of cases in which a claim holds: all, or more than half."""
    return "confirmed" if value >= confirmed else "partly" if value > partly else "refuted"
