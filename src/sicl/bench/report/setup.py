"""The configuration and environment of all cells: what they share once, what differs with counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from sicl.bench.run.schema import Record
from sicl.bench.tables.svg import tag

MAX_VALUES = 12
MAX_FULL = 60
MAX_OPEN = 24
NOUNS = ("dataset", "model", "method", "stream")
TOLD = ("name", "label", "class", "preset", "options", "corruption", "severity", "seed")
"""What the tables tell already, or what says nothing about how a cell was run."""
PARTS = {"spec": "Configuration", "environment": "Environment", "data": "Data and weights", "timing": "Time"}


def setup_section(records: Sequence[Record]) -> str:
    """Return shared and differing settings, and for up to 60 cells each cell's full record head."""
    parts = [_table(title, [_part(record, key) for record in records]) for key, title in PARTS.items()]
    if len(records) <= MAX_FULL:
        full = "".join(_full(record) for record in records)
        parts.append(tag("details", tag("summary", f"Every cell in full ({len(records)})") + full))
    return "".join(parts)


def condensed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cell's settings once: options as they were used, without what the tables tell already."""
    used = spec.get("resolved", {})
    short: dict[str, Any] = {}
    for key, value in spec.items():
        if key in NOUNS and isinstance(value, Mapping):
            short[key] = _options(value, used.get(key))
        elif key == "calibrators" and isinstance(value, Mapping):
            found = used.get(key, {})
            short[key] = {label: _options(item, found.get(label)) for label, item in value.items()}
        elif key not in ("resolved", "seed"):
            short[key] = value
    return short


def _options(planned: object, used: Mapping[str, Any] | None) -> object:
    if not isinstance(planned, Mapping):
        return planned
    options = {**planned, **(planned.get("options", {}) if used is None else used)}
    return {key: value for key, value in options.items() if key not in TOLD}


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


def _part(record: Record, key: str) -> Mapping[str, Any]:
    settings: Mapping[str, Any] = getattr(record, key)
    return condensed(settings) if key == "spec" else settings


def _table(title: str, settings: Sequence[Mapping[str, Any]]) -> str:
    flat = [flatten(setting) for setting in settings]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    if not keys:
        return ""
    rows = []
    for key in keys:
        counts = Counter(one[key] for one in flat if key in one)
        if set(counts) != {"{}"}:
            rows.append(tag("dt", escape(key)) + tag("dd", _values(counts, len(flat))))
    content = tag("summary", title) + tag("dl", "".join(rows))
    return tag("details", content, open="" if len(rows) <= MAX_OPEN else None)


def _values(counts: Counter[str], total: int) -> str:
    if list(counts.values()) == [total]:
        return escape(next(iter(counts)))
    numbers = [_number(value) for value in counts]
    if len(counts) > MAX_VALUES and None not in numbers:
        known = [number for number in numbers if number is not None]
        return escape(f"{min(known):.3g} to {max(known):.3g}, differs between cells")
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
