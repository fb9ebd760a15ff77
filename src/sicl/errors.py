"""The errors `sicl` raises on purpose, one sentence each, and the checks of every kind of input that raise them."""

from __future__ import annotations

import difflib
import os
import reprlib
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from typing import Any

LARGEST_INT = 2**63 - 1
"""Integers of options fit 64 bits, as seeds and sizes in torch must."""
LARGEST_NUMBER = 1e30
"""Numbers of options stay below this: a few steps beyond it float32 overflows."""

_LONGEST_NAME, _LONGEST_PATH = 255, 4096


class SiclError(Exception):
    """Base class of every error a user of `sicl` can cause; the command line prints it as one sentence."""


class OptionError(SiclError, ValueError):
    """An option or argument has a value it must not have."""


class InputError(SiclError, ValueError):
    """Images, logits or labels have the wrong shape, type or content."""


class UnsupportedModelError(SiclError, TypeError):
    """The model lacks what a method or calibrator needs."""


class DataError(SiclError):
    """A data set or file is missing, damaged or not what its name says."""


class SetupError(SiclError):
    """The machine or its folders cannot run what was asked for: a full disk, a folder that is a file."""


def shown(value: object) -> str:
    """Return a value as one short line for a message, whatever it is."""
    try:
        text = " ".join((repr(value) if isinstance(value, str) else reprlib.repr(value)).split())
    except Exception:
        text = f"a {type(value).__name__}"
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= 200 else f"{text[:197]}..."


def reason(error: BaseException) -> str:
    """Return what an exception of another library says as one short line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


def is_integer(value: object) -> bool:
    """Say whether a value is an integer (no bool) of at most 64 bits."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return False
    return -LARGEST_INT - 1 <= int(value) <= LARGEST_INT


def is_number(value: Any) -> bool:
    """Say whether a value is a real number (no bool) that is not NaN and within +-`LARGEST_NUMBER`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return bool(abs(value) <= LARGEST_NUMBER)  # type: ignore[operator]


def is_text(value: object) -> bool:
    """Say whether a value is a string that can be written as UTF-8 (no lone surrogates)."""
    try:
        return isinstance(value, str) and value.encode("utf-8") is not None
    except UnicodeEncodeError:
        return False


def _require(test: Callable[[Any], bool], what: str, values: Mapping[str, object]) -> None:
    for name, value in values.items():
        if not test(value):
            raise OptionError(f"`{name}` must be {what}, got {shown(value)}.")


def require_integer(**values: object) -> None:
    """Raise `OptionError` unless every named value is an integer of at most 64 bits."""
    _require(is_integer, "an integer (64 bits)", values)


def require_number(**values: object) -> None:
    """Raise `OptionError` unless every named value is a finite number."""
    _require(is_number, "a finite number (within +-1e30)", values)


def require_text(**values: object) -> None:
    """Raise `OptionError` unless every named value is a string that can be written as UTF-8."""
    _require(is_text, "a string of valid Unicode", values)


def require_positive(**values: float) -> None:
    """Raise `OptionError` unless every named value is a finite number > 0."""
    require_number(**values)
    for name, value in values.items():
        if not value > 0:
            raise OptionError(f"`{name}` must be > 0, got {value!r}.")


def require_not_negative(**values: float) -> None:
    """Raise `OptionError` unless every named value is a finite number >= 0."""
    require_number(**values)
    for name, value in values.items():
        if not value >= 0:
            raise OptionError(f"`{name}` must be >= 0, got {value!r}.")


def require_count(**values: int) -> None:
    """Raise `OptionError` unless every named value is an integer > 0."""
    require_integer(**values)
    require_positive(**values)


def require_between(low: float, high: float, **values: float) -> None:
    """Raise `OptionError` unless every named value is a finite number in [low, high]."""
    require_number(**values)
    for name, value in values.items():
        if not low <= value <= high:
            raise OptionError(f"`{name}` must lie in [{low}, {high}], got {value!r}.")


def require_choice(choices: Iterable[str], **values: str) -> None:
    """Raise `OptionError` unless every named value is one of `choices`; names the nearest one."""
    known = list(choices)
    for name, value in values.items():
        if not isinstance(value, str) or value not in known:
            raise OptionError(
                f"`{name}` must be one of {', '.join(known)}; got {shown(value)}.{nearest(value, known)}"
            )


def require_path(**values: object) -> None:
    """Raise `OptionError` unless every named value is a path that a file system can hold: no NUL, not too long."""
    for name, value in values.items():
        path = os.fspath(value) if isinstance(value, os.PathLike) else value
        if not isinstance(path, str) or not path or "\0" in path:
            raise OptionError(f"`{name}` must be a path, got {shown(value)}.")
        try:
            longest = max(len(os.fsencode(part)) for part in path.split(os.sep))
        except UnicodeEncodeError:
            longest = len(path) + _LONGEST_NAME
        if longest > _LONGEST_NAME or len(path) > _LONGEST_PATH:
            raise OptionError(
                f"`{name}` must be a path that a file system can hold (names of at most {_LONGEST_NAME} bytes), "
                f"got {shown(value)}."
            )


def nearest(value: object, known: Iterable[str]) -> str:
    """Return " Did you mean ...?" for a near miss, or an empty string."""
    if not isinstance(value, str) or len(value) > _LONGEST_NAME:
        return ""
    close = difflib.get_close_matches(value, list(known), n=3)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
