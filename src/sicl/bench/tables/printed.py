"""The numbers printed in the SICL paper (WACV 2026): its main table and its two ResNet-18 tables."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, NamedTuple, Protocol

from sicl.data.files import embedded
from sicl.errors import require_choice

Table = Literal["main", "corruptions"]
Key = tuple[str, str, str, str, str, str | None]


_PRINTED: dict[str, dict[str, list[Any]]] = embedded("sicl.bench.tables", "printed.json")

CORRUPTIONS: tuple[str, ...] = tuple(_PRINTED["corruptions"]["columns"])
"""The columns of its tables: the fifteen corruptions in their usual order."""

BESIDE = tuple(dict.fromkeys(row[2] for row in _PRINTED["corruptions"]["rows"]))
"""The calibrators it prints numbers of."""


class Inconsistency(NamedTuple):
    """A row whose printed average is further from the mean of its printed values than rounding allows."""

    table: Table
    stream: str
    dataset: str
    method: str | None
    calibrator: str
    printed: float
    mean: float


class Run(Protocol):
    """What was run: a record, or a group of them."""

    @property
    def dataset(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def stream(self) -> str: ...


def printed_value(run: Run, calibrator: str, corruption: str | None) -> float | None:
    """Return what the paper prints for a run, in percent: the main table's average, or one corruption's number.

    Our reading of the printed formula and our default both stand beside the paper's SICL.
    """
    return paper_value(
        dataset=run.dataset,
        model=run.model,
        method=run.method,
        stream=run.stream,
        calibrator="sicl" if calibrator == "sicl_paper" else calibrator,
        corruption=corruption,
        table="main" if corruption is None else "corruptions",
    )


def paper_value(
    *,
    dataset: str,
    model: str,
    method: str,
    calibrator: str,
    stream: str = "benign",
    corruption: str | None = None,
    table: Table | None = None,
) -> float | None:
    """Return a printed number in percent, or None where the paper prints none.

    The values are cumulative ECE, or accuracy for `calibrator="accuracy"` (main table only). Names are
    matched kindly: "cifar10" is "cifar10-c", any "vit..." is the paper's ViT of that data set.

    Args:
        dataset: "cifar10-c", "cifar100-c" or "imagenet-c".
        model: "resnet50", "resnet101" and "vit" (main table), "resnet18" (per-corruption tables).
        method: "tent", "eata", "sar", "rotta" or "sotta".
        calibrator: a calibrator's name, or "accuracy".
        stream: "benign" or "dynamic"; the per-corruption tables are benign.
        corruption: one of `CORRUPTIONS`, or None for the average over all 15.
        table: "main" or "corruptions" to look in one table only.
    """
    tables: tuple[Table, ...] = ("main", "corruptions")
    if table is not None:
        require_choice(tables, table=table)
    network = "vit" if _plain(model).startswith("vit") else _plain(model)
    key = (stream, f"{_plain(dataset).removesuffix('c')}-c", network, method, calibrator, corruption)
    chosen = tables if table is None else (table,)
    return next((found for name in chosen if (found := _values(name).get(key)) is not None), None)


def inconsistencies(*, tolerance: float = 0.001) -> list[Inconsistency]:
    """Return the rows whose printed average is not the mean of what they print.

    Every value is rounded, so the mean is known to half a unit in the last place, and so is the printed
    average: a row counts when they differ by more than one unit in the last place (plus `tolerance`).
    """
    rows: list[Any] = [(0.1, "main", *row[:2], None, *row[2:]) for row in _PRINTED["main"]["rows"]]
    rows += [(0.01, "corruptions", "benign", *row) for row in _PRINTED["corruptions"]["rows"]]
    found = []
    for unit, *place, values, printed in rows:
        mean = sum(values) / len(values)
        if printed is not None and abs(mean - printed) > unit + tolerance:
            found.append(Inconsistency._make((*place, printed, mean)))
    return found


def paper_wins(calibrator: str = "sicl") -> tuple[int, int]:
    """Return in how many settings of the main table a calibrator's printed ECE is lowest, and of how many."""
    values = _values("main")
    settings = {key[:4] for key in values if key[4] in BESIDE}
    wins = 0
    for stream, dataset, model, method in settings:
        row = {name: values[stream, dataset, model, method, name, None] for name in BESIDE}
        wins += row[calibrator] == min(row.values())
    return wins, len(settings)


@cache
def _values(table: Table) -> dict[Key, float]:
    raw = _PRINTED[table]
    values: dict[Key, float] = {}
    for row in raw["rows"]:
        if table == "main":
            stream, dataset, calibrator, numbers, _ = row
            for (model, method), number in zip(raw["columns"], numbers):
                values[stream, dataset, model, method, calibrator, None] = number
        else:
            dataset, method, calibrator, numbers, printed = row
            for corruption, number in zip(raw["columns"], numbers):
                values["benign", dataset, "resnet18", method, calibrator, corruption] = number
            values["benign", dataset, "resnet18", method, calibrator, None] = printed
    return values


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")
