"""What every spec shares: its fields are checked against their annotations when it is made."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from dataclasses import fields
from inspect import get_annotations
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from sicl.errors import OptionError, is_integer, is_number, is_text, require_choice, shown


class Spec:
    """Base of all frozen dataclasses of options: each field must fit its annotation before other rules are asked.

    `int` is an integer of at most 64 bits, `float` a finite number, `Literal` one of its choices, `str` valid
    Unicode; tuples, unions and classes likewise. numpy's numbers become Python's and lists tuples, so that equal
    specs are equal. It makes no difference whether a `__post_init__` calls `super()`: annotations always hold.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        rules = cls.__dict__.get("__post_init__")
        if rules is not None:

            @functools.wraps(rules)
            def checked(self: Spec) -> None:
                require_annotated(self)
                rules(self)

            cls.__post_init__ = checked  # type: ignore[method-assign]

    def __post_init__(self) -> None:
        """Check the fields; subclasses add ranges and what fields demand of each other."""
        require_annotated(self)


def require_annotated(spec: object) -> None:
    """Raise `OptionError` unless every field of a dataclass fits its annotation; numbers and tuples become plain."""
    for name, kind in _kinds(type(spec)).items():  # type: ignore[arg-type]
        given = getattr(spec, name)
        value = plain(given)
        if not fits(kind, value):
            _refuse(name, kind, value)
        if value is not given:
            object.__setattr__(spec, name, value)


@functools.cache
def _kinds(spec: type) -> dict[str, Any]:
    """Return the fields' types; one that cannot be resolved (imported for type checking only) may be anything."""
    found = {}
    for item in fields(spec):
        owner = next(c for c in spec.__mro__ if item.name in get_annotations(c))
        holder = type("holder", (), {"__annotations__": {item.name: get_annotations(owner)[item.name]}})
        try:
            found.update(get_type_hints(holder, vars(sys.modules[owner.__module__])))
        except (NameError, KeyError, TypeError):
            continue
    return found


def plain(value: Any) -> Any:
    """Return numpy's and torch's scalars as Python's, lists as tuples."""
    if type(value) in (int, float, bool, str, type(None)):
        return value
    if isinstance(value, list | tuple):
        items = tuple(plain(item) for item in value)
        # A tuple that is plain already, or of a class of its own, is kept.
        same = isinstance(value, tuple) and all(a is b for a, b in zip(items, value))
        return value if same else items
    return value.item() if hasattr(value, "item") and getattr(value, "shape", None) == () else value


_PLAIN: dict[type, Callable[[object], bool]] = {
    int: is_integer,
    float: is_number,
    str: is_text,
    bool: lambda value: isinstance(value, bool),
    type(None): lambda value: value is None,
}
_WORDS = {
    int: "an integer (64 bits)",
    float: "a finite number (within +-1e30)",
    str: "a string of valid Unicode",
    bool: "True or False",
    type(None): "None",
}


def fits(kind: Any, value: Any, *, classes: bool = True) -> bool:
    """Say whether a plain value is of a type; with `classes=False` any value may stand for an object of a class."""
    each = functools.partial(fits, classes=classes)
    if kind in _PLAIN:
        return bool(_PLAIN[kind](value))
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in parts)
    if origin in (Union, types.UnionType):
        return any(each(part, value) for part in parts)
    if origin in (tuple, list):
        if not isinstance(value, tuple):
            return False
        if origin is list or (len(parts) == 2 and parts[1] is ...):
            return all(each(parts[0], item) for item in value)
        return len(value) == len(parts) and all(map(each, parts, value))
    # Protocols and what has no class at run time are left to the spec's own rules.
    if not isinstance(kind, type) or getattr(kind, "_is_protocol", False):
        return True
    return not classes or isinstance(value, kind)


def _refuse(name: str, kind: Any, value: Any) -> NoReturn:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is tuple and isinstance(value, tuple) and parts[-1] is ...:
        _refuse(name, parts[0], next(item for item in value if not fits(parts[0], plain(item))))
    if origin is Literal and all(isinstance(choice, str) for choice in parts):
        require_choice(parts, **{name: value})
    raise OptionError(f"`{name}` must be {_words(kind)}, got {shown(value)}.")


def _words(kind: Any) -> str:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "one of " + ", ".join(map(str, parts)) if len(parts) > 1 else repr(parts[0])
    if origin in (Union, types.UnionType):
        return " or ".join(map(_words, parts))
    if origin is tuple:
        if len(parts) == 2 and parts[1] is ...:
            return f"a tuple, each item {_words(parts[0])}"
        return f"a tuple of {len(parts)}: {', '.join(map(_words, parts))}"
    return _WORDS.get(kind) or f"a {getattr(kind, '__name__', kind)}"
