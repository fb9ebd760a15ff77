"""The configuration and environment of all cells: what they share once, what differs with counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from sicl.bench.report.svg import tag
from sicl.bench.schema import Record

MAX_VALUES = 12
MAX_FULL = 60
PARTS = {
    "spec": "Configuration",
    "environment": "Environment",
    "data": "Data and weights",
    "timing": "Time",
}


def setup_section(records: Sequence[Record]) -> str:
    """Return shared and differing settings, and for up to 60 cells each cell's full record head."""
    parts = [_table(title, [getattr(record, key) for record in records]) for key, title in PARTS.items()]
    if len(records) <= MAX_FULL:
        full = "".join(_full(record) for record in records)
        parts.append(tag("details", tag("summary", f"Every cell in full ({len(records)})") + full))
    return "".join(parts)


def flatten(value: object, prefix: str = "") -> dict[str, str]:
    """Return nested mappings as one level of dotted keys, values as compact JSON or plain text."""
    if isinstance(value, Mapping) and value:
        flat: dict[str, str] = {}
        for key, inner in value.items():
            flat |= flatten(inner, f"{prefix}.{key}" if prefix else str(key))
        return flat
    if not prefix:
        return {}
    return {prefix: value if isinstance(value, str) else json.dumps(value, default=str)}


def _table(title: str, settings: Sequence[Mapping[str, Any]]) -> str:
    flat = [flatten(setting) for setting in settings]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    if not keys:
        return ""
    rows = []
    for key in keys:
        counts = Counter(one.get(key, "not given") for one in flat)
        rows.append(tag("dt", escape(key)) + tag("dd", _values(counts, len(flat))))
    return tag("details", tag("summary", title) + tag("dl", "".join(rows)), open="")


def _values(counts: Counter[str], total: int) -> str:
    if len(counts) == 1:
        return escape(next(iter(counts)))
    numbers = [_number(value) for value in counts]
    if len(counts) > MAX_VALUES and None not in numbers:
        known = [number for number in numbers if number is not None]
        return escape(f"{min(known):g} to {max(known):g}, differs between cells")
    shown = [f"{value} ({count} of {total} cells)" for value, count in counts.most_common(MAX_VALUES)]
    more = f"; {len(counts) - MAX_VALUES} more values" if len(counts) > MAX_VALUES else ""
    return escape("; ".join(shown) + more)


def _number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _full(record: Record) -> str:
    head = {key: getattr(record, key) for key in PARTS}
    body = json.dumps(head, indent=2, default=str)
    return tag("details", tag("summary", escape(record.label)) + tag("pre", escape(body)))
