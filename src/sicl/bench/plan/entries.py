"""The entries of a plan: names with options, checked one by one, with all problems kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any

from sicl.bench.plan import registry
from sicl.bench.plan.declared import Kind, Unread, accepts
from sicl.errors import OptionError, nearest

LIMITS = ("datasets", "models", "methods")
"""Keys that keep an entry to some of the plan's data sets, models or methods."""


@dataclass(frozen=True)
class Entry:
    """A named thing of a plan.

    Args:
        name: what it is.
        label: what results call it.
        options: what the plan sets, and nothing else.
        limits: the labels it is kept to, by `datasets`, `models` or `methods`.
        preset: the named set of options it starts from.
        kind: its spec class, for methods, calibrators and streams; None if that is not usable.
    """

    name: str
    label: str
    options: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, list[str]] = field(default_factory=dict)
    preset: str | None = None
    kind: Kind | None = None

    def allows(self, **labels: str) -> bool:
        """Say whether the limits let this entry meet the others."""
        return all(label in self.limits[key] for key, label in labels.items() if key in self.limits)

    def complete(self) -> dict[str, Any]:
        """Return every option with its value: the plan's, else the default."""
        if self.kind is None:
            return dict(self.options)
        known = {name: option.default for name, option in self.kind.options.items()}
        known = {name: value for name, value in known.items() if not isinstance(value, Unread)}
        return {**{name: value for name, value in known.items() if value is not MISSING}, **self.options}


class Problems:
    """Collects what is wrong with a plan, so that all of it is reported at once."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, where: str, message: str) -> None:
        """Keep one problem, once."""
        text = f"{where}: {message}"
        if text not in self.found:
            self.found.append(text)

    def catch(self, where: str, check: Callable[[], Any]) -> Any:
        """Return what `check` returns, or keep its error and return None."""
        try:
            return check()
        except (OptionError, TypeError) as error:
            self.add(where, str(error))
            return None

    def unknown_keys(self, where: str, keys: Iterable[str], known: Sequence[str]) -> None:
        """Keep a problem for each key that is not known."""
        for key in keys:
            if key not in known:
                self.add(where, f"unknown key {key!r}; known: {', '.join(known)}.{nearest(key, known)}")

    def report(self, plan: str) -> None:
        """Raise `OptionError` with every problem, if there is one."""
        if self.found:
            count = "1 problem" if len(self.found) == 1 else f"{len(self.found)} problems"
            raise OptionError("\n  - ".join([f"{plan} has {count}:", *self.found]))


def read_entries(raw: Any, noun: str, reserved: Sequence[str], problems: Problems) -> list[Entry]:
    """Return the entries under `datasets`, `models`, ...: each a name, or a table with a `name`."""
    items = [raw] if isinstance(raw, str | Mapping) else raw
    if not isinstance(items, list | tuple) or not items:
        problems.add(f"{noun}s", f"must be a list with at least one {noun}, got {raw!r}.")
        return []
    entries = []
    for item in items:
        table = {"name": item} if isinstance(item, str) else item
        if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
            problems.add(f"{noun}s", f"each must be a name or a table with a `name`, got {item!r}.")
            continue
        entries.append(_entry(dict(table), noun, reserved, problems))
    labels = [entry.label for entry in entries]
    for label in sorted({label for label in labels if labels.count(label) > 1}):
        if noun != "stream":
            problems.add(f"{noun}s", f"{label!r} is there twice; give one of them another `label`.")
    return entries


def _entry(table: dict[str, Any], noun: str, reserved: Sequence[str], problems: Problems) -> Entry:
    name = table.pop("name")
    label = table.pop("label", name)
    limits = {}
    for key in LIMITS:
        if key in reserved and key in table:
            value = table.pop(key)
            limits[key] = [value] if isinstance(value, str) else list(value)
    preset = table.pop("preset", None) if "preset" in reserved else None
    if noun == "calibrator" and name in registry.VARIANTS:
        preset = registry.VARIANTS[name][1]
    where = f"{noun} {label!r}"
    if noun in ("dataset", "model"):
        problems.unknown_keys(where, table, ("name", "label", *reserved))
        return Entry(name, str(label), table, limits, preset)
    kind = problems.catch(where, lambda: registry.find_kind(noun, name))
    if kind is not None and not _check_options(where, table, kind, ("name", "label", *reserved), problems):
        kind = None
    return Entry(name, str(label), table, limits, preset, kind)


def _check_options(
    where: str, table: dict[str, Any], kind: Kind, reserved: Sequence[str], problems: Problems
) -> bool:
    """Say whether keys and types are right; streams are checked where they are expanded."""
    if kind.path.startswith("sicl.streams."):
        return True
    before = len(problems.found)
    known = list(kind.options)
    problems.unknown_keys(where, table, [*known, *reserved])
    for key, value in table.items():
        if key in known and not accepts(kind.options[key].annotation, value):
            problems.add(where, f"`{key}` must be {kind.options[key].annotation}, got {value!r}.")
    return len(problems.found) == before
