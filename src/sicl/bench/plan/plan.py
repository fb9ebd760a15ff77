"""Plans: a TOML file or a table becomes cells, and everything wrong with it is reported at once."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from sicl.bench.plan import registry
from sicl.bench.plan.cell import Cell
from sicl.bench.plan.combinations import (
    check_combination,
    check_models,
    check_values,
    method_preset,
    model_source,
    source_of,
)
from sicl.bench.plan.entries import Entry, Problems, read_entries
from sicl.bench.plan.streams import expand_streams
from sicl.errors import DataError

NOUNS = {
    "dataset": ("split", "source", "source_n"),
    "model": ("load", "arch", "mean", "std", "datasets", "methods"),
    "method": ("preset", "datasets", "models"),
    "calibrator": (),
    "stream": ("datasets",),
}
KEYS = ("name", "seeds", "predict", *(f"{noun}s" for noun in NOUNS))


@dataclass(frozen=True)
class Plan:
    """The cells of a benchmark, in the order they are run.

    Args:
        name: what the results are called.
        cells: each with another id.
        table: the plan as it was given.
    """

    name: str
    cells: tuple[Cell, ...]
    table: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.cells)


def load_plan(source: str | os.PathLike[str] | Mapping[str, Any]) -> Plan:
    """Return the plan of a TOML file, or of a table that looks like one.

    Raises:
        DataError: the file is missing or no TOML.
        OptionError: unknown keys, names and impossible combinations, all of them in one message.
    """
    if isinstance(source, Mapping):
        table, name = dict(source), str(source.get("name", "plan"))
    else:
        table, name = _read_toml(Path(source)), Path(source).stem
    problems = Problems()
    plan = Plan(str(table.get("name", name)), tuple(_cells(table, problems)), table)
    if not problems.found and not plan.cells:
        problems.add(
            "plan", "has no cells: the `datasets`, `models` and `methods` limits exclude each other."
        )
    problems.report(f"the plan {plan.name!r}")
    return plan


def _read_toml(path: Path) -> dict[str, Any]:
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        table: dict[str, Any] = toml.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"the plan `{path}` cannot be read: {error.strerror or error}.") from error
    except toml.TOMLDecodeError as error:
        raise DataError(f"the plan `{path}` is no TOML: {error}.") from error
    return table


def _cells(table: Mapping[str, Any], problems: Problems) -> list[Cell]:
    problems.unknown_keys("plan", table, KEYS)
    seeds = table.get("seeds", [0])
    if not isinstance(seeds, list | tuple) or not all(type(s) is int and s >= 0 for s in seeds) or not seeds:
        problems.add("seeds", f"must be a list of whole numbers >= 0, got {seeds!r}.")
        seeds = [0]
    if len(set(seeds)) < len(seeds):
        problems.add("seeds", f"must name each seed once, got {list(seeds)!r}.")
    predict = table.get("predict")
    if predict not in (None, "before", "after"):
        problems.add("predict", f'must be "before" or "after", got {predict!r}.')
        predict = None
    entries = {noun: _read(table, noun, reserved, problems) for noun, reserved in NOUNS.items()}
    entries["stream"] = expand_streams(entries["stream"], problems)
    _check_limits(entries, problems)
    for entry in entries["dataset"]:
        problems.catch(f"dataset {entry.label!r}", lambda entry=entry: registry.check_dataset(entry.name))  # type: ignore[misc]
    check_values(entries, problems)
    chosen = list(_combinations(entries, problems))
    check_models(((dataset, model) for dataset, model, _, _ in chosen), seeds, problems)
    if problems.found:
        return []
    calibrators = entries["calibrator"]
    return [Cell(_spec(parts, calibrators, seed, predict)) for seed in seeds for parts in chosen]


def _read(table: Mapping[str, Any], noun: str, reserved: tuple[str, ...], problems: Problems) -> list[Entry]:
    defaults = {"calibrator": ["softmax", "sicl"], "stream": ["benign"], "method": ["source"]}
    key = f"{noun}s"
    if key not in table and noun not in defaults:
        problems.add("plan", f'must have `{key}`, for example {key} = ["demo"].')
        return []
    return read_entries(table.get(key, defaults.get(noun)), noun, reserved, problems)


def _check_limits(entries: dict[str, list[Entry]], problems: Problems) -> None:
    """Keep a problem for each limit that names something the plan does not have."""
    for noun, group in entries.items():
        for entry in group:
            for key, labels in entry.limits.items():
                known = [other.label for other in entries[key.removesuffix("s")]]
                problems.unknown_keys(f"{noun} {entry.label!r}, `{key}`", labels, known)


def _combinations(entries: dict[str, list[Entry]], problems: Problems) -> Iterator[tuple[Entry, ...]]:
    parts = (entries[noun] for noun in ("dataset", "model", "method", "stream"))
    for dataset, model, method, stream in product(*parts):
        labels = {"datasets": dataset.label, "models": model.label, "methods": method.label}
        if not all(entry.allows(**labels) for entry in (model, method, stream)):
            continue
        check_combination(dataset, model, method, entries["calibrator"], problems)
        yield dataset, model, method, stream


def _spec(
    parts: tuple[Entry, ...], calibrators: list[Entry], seed: int, predict: str | None
) -> dict[str, Any]:
    dataset, model, method, stream = parts
    chosen = _with_seed(method, seed, method_preset(method, dataset, model))
    if predict is not None:
        chosen["options"]["predict"] = method.options.get("predict", predict)
    return {
        "dataset": {
            "name": dataset.name,
            "label": dataset.label,
            "split": dataset.options.get("split", "test"),
            "source": source_of(dataset, [method, *calibrators]),
        },
        "model": {
            "name": model.name,
            "label": model.label,
            "load": model_source(model, dataset, seed),
            "options": {key: value for key, value in model.options.items() if key != "load"},
        },
        "method": chosen,
        "stream": _with_seed(stream, seed),
        "calibrators": {entry.label: _with_seed(entry, seed) for entry in calibrators},
        "seed": seed,
    }


def _with_seed(entry: Entry, seed: int, preset: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what a spec object is made from; its `seed` is the cell's unless the plan sets it."""
    assert entry.kind is not None
    # A calibrator's preset is a function of its class: it is kept by name, its code and defaults in the hash.
    by_name = entry.preset is not None and preset is None
    options = dict(entry.options) if by_name else {**entry.complete(), **(preset or {}), **entry.options}
    if "seed" in entry.kind.options or entry.name == "noisy":
        options["seed"] = entry.options.get("seed", seed)
    return {
        "name": entry.name,
        "label": entry.label,
        "class": entry.kind.path,
        "preset": entry.preset,
        **({"basis": registry.preset_basis(entry.kind, str(entry.preset))} if by_name else {}),
        "options": options,
    }
