"""Spec classes as a plan sees them: their fields, the fields' types, and which values fit."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from inspect import formatannotation
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

LONGEST = 200
"""Characters of a name, a label, or a value in a message."""

LARGEST = 2**63
"""No whole number of a plan is larger: what reads it later counts in 64 bits."""


@dataclass(frozen=True)
class Option:
    """One field of a spec.

    Args:
        type: what it is declared to be; None if that cannot be told.
        text: the same in words.
        default: its value; MISSING where there is none, or none that a record could hold.
    """

    type: Any
    text: str
    default: Any = field(default_factory=lambda: MISSING)


@dataclass(frozen=True)
class Kind:
    """A spec class: where it is, and what can be set.

    Args:
        path: "module:Class", as records name it.
        spec: the class.
        options: its fields, the inherited ones first.
        own: whether it is the user's.
        needs_source: whether it declares `needs_source = True`.
    """

    path: str
    spec: type
    options: dict[str, Option]
    own: bool = False
    needs_source: bool = False

    def defaults(self) -> dict[str, Any]:
        """Return every default that is known."""
        return {name: item.default for name, item in self.options.items() if item.default is not MISSING}


def kind_of(path: str, spec: type, *, own: bool = False) -> Kind:
    """Return a class as its fields declare it."""
    try:
        hints = get_type_hints(spec)
    except Exception:  # A name that is there for type checkers alone.
        hints = {}
    options = {}
    for item in fields(spec) if is_dataclass(spec) else ():
        text = item.type if isinstance(item.type, str) else formatannotation(item.type)
        default = item.default if is_plain(item.default) else MISSING
        options[item.name] = Option(hints.get(item.name), text, default)
    return Kind(path, spec, options, own, bool(getattr(spec, "needs_source", False)))


def accepts(declared: Any, value: object) -> bool:
    """Say whether a plan's value fits a type; a type that is not understood accepts anything."""
    origin, arguments = get_origin(declared), get_args(declared)
    if origin in (Union, types.UnionType):
        return any(accepts(item, value) for item in arguments)
    if origin is Literal:
        return any(type(item) is type(value) and item == value for item in arguments)
    if declared in (None, type(None)):
        return declared is None or value is None
    if origin in (tuple, list):
        inner = arguments[0] if arguments else None
        return isinstance(value, list | tuple) and all(accepts(inner, item) for item in value)
    if declared in (str, bool, int, float):
        wanted = (int, float) if declared is float else declared
        return isinstance(value, wanted) and (declared is bool or not isinstance(value, bool))
    return True


def is_plain(value: object, depth: int = 6) -> bool:
    """Say whether a record can hold a value as it is: text, finite numbers, None, lists and tables of these."""
    if isinstance(value, str):
        return not has_controls(value)
    if isinstance(value, int):
        return -LARGEST <= value < LARGEST
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list | tuple):
        return depth > 0 and all(is_plain(item, depth - 1) for item in value)
    if isinstance(value, Mapping):
        pairs = [part for pair in value.items() for part in pair]
        return all(isinstance(key, str) for key in value) and is_plain(pairs, depth)
    return value is None


def has_controls(text: str) -> bool:
    """Say whether a text has control characters, or half a character, which no file name, record or page has."""
    return any(ord(letter) < 32 or ord(letter) == 127 or 0xD800 <= ord(letter) < 0xE000 for letter in text)


def shown(value: object) -> str:
    """Return a value as an error message shows it: a very long one is cut short."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."
