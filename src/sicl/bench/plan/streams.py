"""From a plan's stream entries to single streams: one for each corruption and severity."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from sicl.bench.plan import registry
from sicl.bench.plan.entries import Entry, Problems
from sicl.bench.plan.registry import Option
from sicl.errors import require_choice

NOISY = ("ood", "share")
SEVERAL = "corruptions"


def expand_streams(entries: list[Entry], problems: Problems) -> list[Entry]:
    """Return an entry for each single stream, its options complete but for the seed."""
    found: list[Entry] = []
    for entry in entries:
        if entry.kind is None:
            continue
        if entry.kind.own:
            found.append(entry)
            continue
        where = f"stream {entry.label!r}"
        known = problems.catch(where, _declared, entry)
        if known is not None:
            found.extend(_singles(entry, known, where, problems))
    _require_distinct(found, problems)
    return found


def _declared(entry: Entry) -> dict[str, Option]:
    """Return what can be set: for "noisy" the base stream's options too."""
    assert entry.kind is not None
    if entry.name != "noisy":
        return entry.kind.options
    base = registry.find_kind("stream", str(entry.options.get("base", "benign")))
    own = {name: entry.kind.options[name] for name in NOISY}
    return {"base": Option(str, "a stream's name"), **own, **base.options}


def _singles(entry: Entry, known: Mapping[str, Option], where: str, problems: Problems) -> Iterator[Entry]:
    listed = [*known, *([SEVERAL] if "corruption" in known else [])]
    problems.unknown_keys(where, entry.options, ["name", "label", "datasets", *listed])
    given = {key: value for key, value in entry.options.items() if key in listed}
    if "corruption" in known:
        many = given.pop(SEVERAL, "all" if "corruption" not in given else given.pop("corruption"))
    else:
        given[SEVERAL] = _names(given.get(SEVERAL, "all"))
        many = None
    severities = given.pop("severity", 5)
    levels = severities if isinstance(severities, list | tuple) else [severities]
    if not levels or (many is not None and not _names(many)):
        problems.add(where, "`severity` and `corruptions` must name at least one each, got an empty list.")
    from sicl.streams.stream import DOMAINS

    for name, level in product(_names(many) if many is not None else [None], levels):
        options = {**given, "severity": level, **({} if name is None else {"corruption": name})}
        if name == "clean" and level != levels[0]:
            continue
        if not problems.wrong_types(where, options, known):
            for corruption in options.get(SEVERAL, [name]):
                problems.catch(where, require_choice, DOMAINS, corruption=corruption or "clean")
            problems.catch(where, _make, entry.name, options)
        yield replace(entry, options=_complete(entry, options))


def _names(value: Any) -> list[Any]:
    if value == "all":
        from sicl.corruptions import CORRUPTIONS

        return list(CORRUPTIONS)
    return list(value) if isinstance(value, list | tuple) else [value]


def _make(name: str, options: dict[str, Any]) -> None:
    from sicl.streams import make_stream

    if "ood" in options:
        registry.check_dataset(options["ood"])
    make_stream(name, **options)


def _complete(entry: Entry, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with every default: what `make_stream` takes."""
    kinds = [entry.kind]
    if entry.name == "noisy":
        options = {"base": "benign", **options}
        kinds.append(registry.find_kind("stream", str(options["base"])))
    defaults = {
        name: value
        for kind in kinds
        if kind is not None
        for name, value in kind.defaults().items()
        if name != "seed"
    }
    return {**defaults, **options}


def _require_distinct(entries: list[Entry], problems: Problems) -> None:
    seen: set[str] = set()
    for entry in entries:
        key = (entry.label, entry.options.get("corruption"), entry.options.get("severity"))
        what = " ".join(str(part) for part in key if part is not None)
        if what in seen:
            problems.add("streams", f"{what!r} is there twice; give one of them another `label`.")
        seen.add(what)
