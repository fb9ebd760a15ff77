"""The errors `sicl` raises on purpose: one sentence each, ending in what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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


def require_positive(**values: float) -> None:
    """Raise `OptionError` unless every named value is > 0."""
    for name, value in values.items():
        if not value > 0:
            raise OptionError(f"`{name}` must be > 0, got {value!r}.")


def require_between(low: float, high: float, **values: float) -> None:
    """Raise `OptionError` unless every named value lies in [low, high]."""
    for name, value in values.items():
        if not low <= value <= high:
            raise OptionError(f"`{name}` must lie in [{low}, {high}], got {value!r}.")


def require_choice(choices: Iterable[str], **values: str) -> None:
    """Raise `OptionError` unless every named value is one of `choices`; names the nearest one."""
    known = list(choices)
    for name, value in values.items():
        if value not in known:
            raise OptionError(
                f"`{name}` must be one of {', '.join(known)}; got {value!r}.{nearest(value, known)}"
            )


def nearest(value: object, known: Iterable[str]) -> str:
    """Return " Did you mean ...?" for a near miss, or an empty string."""
    close = difflib.get_close_matches(str(value), list(known), n=3)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
