"""Plans: a TOML file or a table becomes cells, and everything wrong with it is reported at once."""

from __future__ import annotations

import importlib
import math
import os
import re
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
from sicl.bench.plan.entries import NOUNS, Entry, Problems, read_entries
from sicl.bench.plan.registry import is_plain
from sicl.bench.plan.streams import expand_streams
from sicl.errors import DataError, shown

KEYS = ("name", "seeds", "predict", *(f"{noun}s" for noun in NOUNS))
NAME = re.compile(r"\w[\w .,+=@()-]{0,99}")
"""What a plan may be called: its name is a folder's and a file's."""

MOST = 1_000_000
"""Cells of one plan: more are a mistake that would fill the memory before it is seen."""


@dataclass(frozen=True)
class BenchPlan:
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


def load_plan(source: str | os.PathLike[str] | Mapping[str, Any]) -> BenchPlan:
    """Return the plan of a TOML file, or of a table that looks like one.

    Raises:
        DataError: the file is missing or no TOML.
        OptionError: unknown keys, names and impossible combinations, all of them in one message.
    """
    table = dict(source) if isinstance(source, Mapping) else read_table(source)
    name = table.get("name", "plan" if isinstance(source, Mapping) else Path(source).stem)
    problems = Problems()
    if not isinstance(name, str) or not NAME.fullmatch(name) or not is_plain(name):
        rule = "must be a word of up to 100 letters, digits, spaces and - _ . , + = @ ( ), for a folder is called so"
        problems.add("name", f"{rule}; got {shown(name)}.")
        name = "plan"
    plan = BenchPlan(name, tuple(_cells(table, problems)), table)
    if not problems.found and not plan.cells:
        problems.add(
            "plan", "has no cells: the `datasets`, `models` and `methods` limits exclude each other."
        )
    problems.report(f"the plan {plan.name!r}")
    return plan


def read_table(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a plan's file says; nothing of it is checked, and nothing imported.

    Raises:
        DataError: the file is missing or no TOML.
    """
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    try:
        table: dict[str, Any] = toml.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"the plan {shown(str(path))} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:  # No TOML, no UTF-8, a NUL in the path, nested without end.
        raise DataError(f"the plan {shown(str(path))} is no TOML: {error}.") from error
    return table


def _cells(table: Mapping[str, Any], problems: Problems) -> list[Cell]:
    problems.unknown_keys("plan", table, KEYS)
    seeds = _seeds(table, problems)
    predict = table.get("predict")
    if predict not in (None, "before", "after"):
        problems.add("predict", f'must be "before" or "after", got {shown(predict)}.')
        predict = None
    entries = {noun: _read(table, noun, problems) for noun in NOUNS}
    entries["stream"] = expand_streams(entries["stream"], problems)
    _check_limits(entries, problems)
    check_values(entries, problems)
    count = len(seeds) * math.prod(len(entries[noun]) for noun in ("dataset", "model", "method", "stream"))
    if count > MOST:
        problems.add("plan", f"must have at most {MOST:,} cells, got {count:,}; make several plans of it.")
        return []
    chosen = list(_combinations(entries, problems))
    check_models(((dataset, model) for dataset, model, _, _ in chosen), seeds, problems)
    if problems.found:
        return []
    calibrators = entries["calibrator"]
    return [Cell(_spec(parts, calibrators, seed, predict)) for seed in seeds for parts in chosen]


def _seeds(table: Mapping[str, Any], problems: Problems) -> list[int]:
    seeds = table.get("seeds", [0])
    whole = isinstance(seeds, list | tuple) and all(type(seed) is int and 0 <= seed < 2**63 for seed in seeds)
    if not whole or not seeds:
        problems.add("seeds", f"must be a list of whole numbers from 0 to 2^63 - 1, got {shown(seeds)}.")
        return [0]
    if len(set(seeds)) < len(seeds):
        problems.add("seeds", f"must name each seed once, got {shown(list(seeds))}.")
    return list(seeds)


def _read(table: Mapping[str, Any], noun: str, problems: Problems) -> list[Entry]:
    defaults = {"calibrator": ["softmax", "sicl"], "stream": ["benign"], "method": ["source"]}
    key = f"{noun}s"
    if key not in table and noun not in defaults:
        problems.add("plan", f'must have `{key}`, for example {key} = ["demo"].')
        return []
    return read_entries(table.get(key, defaults.get(noun)), noun, problems)


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
    defaults = entry.kind.defaults()
    for name in registry.UNTOLD.get(entry.name, ()):
        if name in options and options[name] == defaults.get(name):
            del options[name]
    if "seed" in entry.kind.options or entry.name == "noisy":
        options["seed"] = entry.options.get("seed", seed)
    return {
        "name": entry.name,
        "label": entry.label,
        "class": entry.kind.path,
        "preset": entry.preset,
        **({"basis": registry.preset_basis(entry.name)} if by_name else {}),
        "options": options,
    }
