"""The entries of a plan: names with options, checked against their spec classes, with all problems kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sicl.bench.plan import registry
from sicl.bench.plan.registry import LONGEST, Kind, Option, accepts, is_plain
from sicl.errors import OptionError, SiclError, nearest, shown

LIMITS = ("datasets", "models", "methods")
"""Keys that keep an entry to some of the plan's data sets, models or methods."""


def _text(*names: str) -> dict[str, Option]:
    return {name: Option(str, "a text") for name in names}


_LIMIT = Option(str | list[str], "a label or a list of labels")
NOUNS: dict[str, dict[str, Option]] = {
    "dataset": {**_text("split", "source"), "source_n": Option(int, "a whole number")},
    "model": {
        "load": Option(None, "a text, or a table of texts by data set"),
        **_text("arch"),
        "mean": Option(list[float], "a list of numbers"),
        "std": Option(list[float], "a list of numbers"),
        "datasets": _LIMIT,
        "methods": _LIMIT,
    },
    "method": {**_text("preset"), "datasets": _LIMIT, "models": _LIMIT},
    "calibrator": {},
    "stream": {"datasets": _LIMIT},
}
"""What an entry of each noun may set besides its name, its label and its class's fields."""


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
        return {**self.kind.defaults(), **self.options}


class Problems:
    """Collects what is wrong with a plan, so that all of it is reported at once."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, where: str, message: str) -> None:
        """Keep one problem, once."""
        text = f"{where}: {message}"
        if text not in self.found:
            self.found.append(text)

    def catch(self, where: str, check: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Return what `check` returns, or keep its error and return None."""
        try:
            return check(*given, **named)
        except SiclError as error:
            self.add(where, str(error))
        # A class that does not check a value itself: its error is the plan's problem.
        except Exception as error:
            self.add(where, f"{type(error).__name__}: {error}")
        return None

    def unknown_keys(self, where: str, keys: Iterable[str], known: Sequence[str]) -> None:
        """Keep a problem for each key that is not known."""
        for key in keys:
            if key not in known:
                self.add(where, f"unknown key {key!r}; known: {', '.join(known)}.{nearest(key, known)}")

    def wrong_types(self, where: str, values: Mapping[str, Any], known: Mapping[str, Option]) -> bool:
        """Keep a problem for each value of the wrong type; says whether there is one."""
        before = len(self.found)
        for key, value in values.items():
            if key in known and not accepts(known[key].type, value):
                self.add(where, f"`{key}` must be {known[key].text}, got {shown(value)}.")
        return len(self.found) > before

    def report(self, plan: str) -> None:
        """Raise `OptionError` with every problem, if there is one."""
        if self.found:
            count = "1 problem" if len(self.found) == 1 else f"{len(self.found)} problems"
            raise OptionError("\n  - ".join([f"{plan} has {count}:", *self.found]))


def read_entries(raw: Any, noun: str, problems: Problems) -> list[Entry]:
    """Return the entries under `datasets`, `models`, ...: each a name, or a table with a `name`."""
    items = [raw] if isinstance(raw, str | Mapping) else raw
    if not isinstance(items, list | tuple) or not items:
        problems.add(f"{noun}s", f"must be a list with at least one {noun}, got {shown(raw)}.")
        return []
    entries = []
    for item in items:
        table = {"name": item} if isinstance(item, str) else item
        if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
            problems.add(f"{noun}s", f"each must be a name or a table with a `name`, got {shown(item)}.")
            continue
        entry = _entry(dict(table), noun, problems)
        if entry is not None:
            entries.append(entry)
    labels = [entry.label for entry in entries]
    for label in sorted({label for label in labels if labels.count(label) > 1}):
        if noun != "stream":
            problems.add(f"{noun}s", f"{label!r} is there twice; give one of them another `label`.")
    return entries


def _entry(table: dict[str, Any], noun: str, problems: Problems) -> Entry | None:
    where = f"{noun} {shown(table.get('label', table['name']))}"
    if not _is_storable(table, where, problems) or problems.wrong_types(where, table, NOUNS[noun]):
        return None
    name, reserved = table.pop("name"), NOUNS[noun]
    label = str(table.pop("label", name))
    limits = {key: table.pop(key) for key in LIMITS if key in reserved and key in table}
    limits = {key: [value] if isinstance(value, str) else list(value) for key, value in limits.items()}
    preset = table.pop("preset", None) if "preset" in reserved else None
    if noun == "calibrator" and name in registry.VARIANTS:
        preset = registry.VARIANTS[name][1]
    if noun in ("dataset", "model"):
        problems.unknown_keys(where, table, ("name", "label", *reserved))
        return Entry(name, label, table, limits, preset)
    kind = problems.catch(where, registry.find_kind, noun, name)
    if kind is not None and (noun != "stream" or kind.own):
        problems.unknown_keys(where, table, [*kind.options, "name", "label", *reserved])
        if problems.wrong_types(where, table, kind.options) or not set(table) <= set(kind.options):
            kind = None
    return Entry(name, label, table, limits, preset, kind)


def _is_storable(table: Mapping[str, Any], where: str, problems: Problems) -> bool:
    """Say whether names are short, and values such that a record can hold them."""
    before = len(problems.found)
    for key, value in table.items():
        if not is_plain(value) or not is_plain(key):
            rule = "text without control characters, finite numbers, true or false, lists and tables of these"
            problems.add(where, f"{key!r} must be {rule}; got {shown(value)}.")
    for key in ("name", "label"):
        value = table.get(key, "x")
        if not isinstance(value, str | int) or not 0 < len(str(value)) <= LONGEST:
            problems.add(where, f"`{key}` must be a text of 1 to {LONGEST} characters, got {shown(value)}.")
    return len(problems.found) == before
