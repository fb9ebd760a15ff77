"""Records to look at: those of a folder, or of one packed file, and of one plan where several wrote there."""

from __future__ import annotations

import json
import lzma
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sicl.bench.run.schema import Record, is_record
from sicl.data.files import write_atomic
from sicl.errors import DataError

PACKED = ".jsonl.xz"
MOST_BYTES = 4 * 2**30
"""What a packed file may unpack to: more is no table of results."""


@dataclass(frozen=True)
class Results:
    """Records, and what is known about those that are not there.

    Args:
        records: one a cell.
        planned: how many cells the plan has; None if no single plan is known.
        left_out: records of the folder that belong to an earlier version of the plan.
    """

    records: list[Record]
    planned: int | None = None
    left_out: int = 0


def load_records(path: str | Path) -> list[Record]:
    """Read every record of a folder (`*.json`, at any depth, sorted by path) or of a packed file.

    JSON files that are no records (a plan, say) are left alone; a damaged one is an error.

    Raises:
        DataError: it is missing, holds no record, or holds a damaged one.
    """
    return _read(Path(path))[0]


def load_results(path: str | Path, plan: str | None = None) -> Results:
    """Read the records of one plan: those of a folder that several plans wrote are never pooled.

    Args:
        path: a folder or a packed file.
        plan: its name, where there are several.

    Raises:
        DataError: as `load_records`, or there are several plans, or none of that name.
    """
    records, plans = _read(Path(path))
    if plan is not None and plan not in plans:
        raise DataError(f"`{path}` has no plan {plan!r}; it has {', '.join(plans) or 'none'}.")
    if plan is None and len(plans) > 1:
        told = ", ".join(f"{name} ({table.get('cells')} cells)" for name, table in plans.items())
        raise DataError(f"`{path}` holds the records of {len(plans)} plans: {told}; name one with --plan.")
    chosen = plans[plan] if plan is not None else next(iter(plans.values()), {})
    collide = max(Counter(record.label for record in records).values()) > 1
    if plan is None and not collide:
        return Results(records, _count(chosen))
    ids = chosen.get("ids")
    if not isinstance(ids, list):
        raise DataError(
            f"`{path}` has several records of one cell's name, of different plans, and does not say which are "
            "whose; give `sicl bench` the plan and the folder once more, which notes it, or part the files."
        )
    wanted = set(map(str, ids))
    kept = [record for record in records if record.cell_id in wanted]
    if not kept:
        raise DataError(f"`{path}` has no record of the plan {chosen.get('plan')!r} yet; run it first.")
    return Results(kept, _count(chosen), len(records) - len(kept))


def pack_results(folder: str | Path, target: str | Path) -> Path:
    """Write a folder's plans and records into one file: JSON lines, compressed; the same bytes for the same content.

    Raises:
        DataError: as `load_records`; or the file is not called `*.jsonl.xz`.
    """
    if not str(target).endswith(PACKED):
        raise DataError(f"`{target}` must end in {PACKED}, for that is how it will be found again.")
    records, plans = _read(Path(folder))
    lines = [json.dumps(table, sort_keys=True, allow_nan=False) + "\n" for _, table in sorted(plans.items())]
    lines += [
        record.to_json() for record in sorted(records, key=lambda record: (record.cell_id, record.label))
    ]
    packed = lzma.compress("".join(lines).encode(), preset=9)
    return write_atomic(target, packed)


def _read(path: Path) -> tuple[list[Record], dict[str, dict[str, Any]]]:
    """Return the records, and the plans by name."""
    if path.is_dir():
        items = _of_folder(path)
    elif path.is_file():
        items = _of_file(path)
    else:
        raise DataError(f"`{path}` is no folder. Give the folder that `sicl bench` wrote its records into.")
    records: list[Record] = []
    plans: dict[str, dict[str, Any]] = {}
    for where, text in items:
        try:
            values = json.loads(text)
            if is_record(values):
                records.append(Record.from_values(values))
            elif isinstance(values, Mapping) and {"plan", "cells"} <= values.keys():
                plans[str(values["plan"])] = dict(values)
        except (ValueError, RecursionError, DataError) as error:
            raise DataError(f"{where} cannot be read: {error} Remove it or run its cell again.") from error
    if not records:
        raise DataError(f"`{path}` holds no records (`*.json`). Run a benchmark into it first.")
    return records, plans


def _of_folder(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*.json")):
        if path.is_file():
            yield f"`{path}`", path.read_bytes().decode("utf-8", "replace")


def _of_file(path: Path) -> Iterator[tuple[str, str]]:
    try:
        with lzma.open(path) as file:
            content = file.read(MOST_BYTES + 1)
    except (lzma.LZMAError, EOFError) as error:
        raise DataError(
            f"`{path}` is no folder and no packed file (*{PACKED}) of records: {error}; give one of them."
        ) from error
    if len(content) > MOST_BYTES:
        raise DataError(f"`{path}` unpacks to more than {MOST_BYTES:,} bytes; that is no file of records.")
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        yield f"Line {number} of `{path}`", line


def _count(plan: Mapping[str, Any]) -> int | None:
    cells = plan.get("cells")
    return cells if isinstance(cells, int) else None
