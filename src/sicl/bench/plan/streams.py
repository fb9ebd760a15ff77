"""From a plan's stream entries to single streams: one for each corruption and severity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import MISSING, replace
from itertools import product
from typing import Any

from sicl.bench.plan import registry
from sicl.bench.plan.declared import Unread, accepts
from sicl.bench.plan.entries import Entry, Problems
from sicl.errors import require_between, require_choice, require_positive

NOISY = ("ood", "share")
SEVERAL = "corruptions"


def expand_streams(entries: list[Entry], problems: Problems) -> list[Entry]:
    """Return an entry for each single stream, its options complete but for the seed."""
    found: list[Entry] = []
    for entry in entries:
        if entry.kind is None:
            continue
        where = f"stream {entry.label!r}"
        if not entry.kind.path.startswith("sicl."):
            found.append(entry)
            continue
        options = _declared(entry, where, problems)
        if options is None:
            continue
        found.extend(_singles(entry, options, where, problems))
    _require_distinct(found, problems)
    return found


def _declared(entry: Entry, where: str, problems: Problems) -> dict[str, str] | None:
    """Return the annotations of what can be set: for "noisy" the base stream's options too."""
    assert entry.kind is not None
    if entry.name != "noisy":
        return {name: option.annotation for name, option in entry.kind.options.items()}
    base = problems.catch(
        where, lambda: registry.find_kind("stream", str(entry.options.get("base", "benign")))
    )
    if base is None:
        return None
    own = {name: entry.kind.options[name].annotation for name in NOISY}
    return {"base": "str", **own, **{name: option.annotation for name, option in base.options.items()}}


def _singles(entry: Entry, known: dict[str, str], where: str, problems: Problems) -> Iterator[Entry]:
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
    for name, level in product(_names(many) if many is not None else [None], levels):
        options = {**given, "severity": level, **({} if name is None else {"corruption": name})}
        if name == "clean" and level != levels[0]:
            continue
        _check(options, known, where, problems)
        yield replace(entry, options=_complete(entry, options))


def _names(value: Any) -> list[Any]:
    if value == "all":
        return list(registry.corruptions())
    return list(value) if isinstance(value, list | tuple) else [value]


def _check(options: dict[str, Any], known: dict[str, str], where: str, problems: Problems) -> None:
    for key, value in options.items():
        if key in known and not accepts(known[key], value):
            problems.add(where, f"`{key}` must be {known[key]}, got {value!r}.")
            return
    problems.catch(where, lambda: require_between(1, 5, severity=options["severity"]))
    several = options.get(SEVERAL, [])
    for name in [*several, *([options["corruption"]] if "corruption" in options else [])]:
        problems.catch(where, lambda name=name: require_choice(registry.domains(), corruption=name))  # type: ignore[misc]
    if len(set(several)) < len(several):
        problems.add(where, f"`corruptions` must name each corruption once, got {', '.join(several)}.")
    for key in ("batch_size", "n", "per_corruption", "gamma", "slots", "label_gamma"):
        if options.get(key) is not None:
            problems.catch(where, lambda key=key: require_positive(**{key: options[key]}))  # type: ignore[misc]
    if "share" in options and not 0 <= options["share"] < 1:
        problems.add(where, f"`share` must lie in [0, 1), got {options['share']!r}.")
    if "order" in options:
        problems.catch(where, lambda: require_choice(("iid", "label"), order=options["order"]))
    if "ood" in options:
        problems.catch(where, lambda: registry.check_dataset(options["ood"]))


def _complete(entry: Entry, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options with every default: what `make_stream` takes."""
    kinds = [entry.kind]
    if entry.name == "noisy":
        options = {"base": "benign", **options}
        kinds.append(registry.find_kind("stream", str(options["base"])))
    defaults = {
        name: option.default
        for kind in kinds
        if kind is not None
        for name, option in kind.options.items()
        if not isinstance(option.default, Unread) and option.default is not MISSING and name != "seed"
    }
    return {**defaults, **options}


def _require_distinct(entries: list[Entry], problems: Problems) -> None:
    seen: set[tuple[object, ...]] = set()
    for entry in entries:
        key = (entry.label, entry.options.get("corruption"), entry.options.get("severity"))
        if key in seen:
            what = " ".join(str(part) for part in key if part is not None)
            problems.add("streams", f"{what!r} is there twice; give one of them another `label`.")
        seen.add(key)
