"""What a plan can name, the user's own included, and spec classes as a plan sees them: fields, types, values."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from sicl.data.load import DATASETS
from sicl.errors import OptionError, nearest
from sicl.spec import fits, plain

OWN = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
"""How a name from the user's own code looks: "package.module:Name"."""

REGISTRIES = {
    "method": ("sicl.adapt", "METHODS", "Method"),
    "calibrator": ("sicl.calibrate", "CALIBRATORS", "Calibrator"),
    "stream": ("sicl.streams", "STREAMS", "Stream"),
}
"""Where the built-in classes of a noun are: room, table by name, base class. Imported when asked: they need torch."""

MODEL_LIBRARIES = ("timm", "torchvision", "hf", "imagenet-resnet50")
NEEDS_SOURCE = ("eata", "temperature_scaling", "transcal")
"""The built-in methods and calibrators that need labelled source data."""

NEEDS_BATCH_NORM = ("batchnorm",)
"""The built-in methods that need batch normalisation layers, which transformers do not have."""

VARIANTS = {"sicl_paper": ("sicl", "paper")}
"""Names that stand for a class and one of its presets."""

UNTOLD = {
    "eata": ("objective",),
    "pseudocal": ("mix",),
    "sar": ("objective", "average_restarts", "momentum_restarts"),
    "sotta": ("admit",),
    "tent": ("objective",),
}
"""Options that cells name only where they are set: they came later, and records of earlier runs stay theirs."""

PLACES = ("folder", "imagenet", "imagenet-c")
"""Data sets whose name goes on after a colon."""


LONGEST = 200
"""Characters of a name or a label."""

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
    """

    path: str
    spec: type
    options: dict[str, Option]
    own: bool = False

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
        text = item.type if isinstance(item.type, str) else inspect.formatannotation(item.type)
        default = item.default if is_plain(item.default) else MISSING
        options[item.name] = Option(hints.get(item.name), text, default)
    return Kind(path, spec, options, own)


def accepts(declared: Any, value: object) -> bool:
    """Say whether a plan's value fits a type; a type that is not understood accepts anything."""
    return declared is None or fits(declared, plain(value), classes=False)


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


def known(noun: str) -> dict[str, type]:
    """Return the built-in methods, calibrators or streams by name; this imports torch."""
    room, table, _ = REGISTRIES[noun]
    return dict(getattr(importlib.import_module(room), table))


def names(noun: str) -> list[str]:
    """Return the built-in names of methods, calibrators or streams."""
    return [*known(noun), *(VARIANTS if noun == "calibrator" else ())]


def find_kind(noun: str, name: str) -> Kind:
    """Return the spec class that a name stands for; nothing of it has been called.

    Args:
        noun: "method", "calibrator" or "stream".
        name: a built-in name, or "package.module:Class" for one's own.

    Raises:
        OptionError: the name is unknown, cannot be imported, or is no class of that noun.
    """
    if OWN.fullmatch(name):
        found = import_own(name)
        if not (inspect.isclass(found) and issubclass(found, base_class(noun))):
            what = found.__name__ if inspect.isclass(found) else type(found).__name__
            raise OptionError(f"{name!r} must be a sicl {noun}, got {what}.")
        if inspect.isabstract(found) or found is base_class(noun):
            raise OptionError(f"{name!r} lacks what a {noun} does; name a class that defines it.")
        return kind_of(name, found, own=not name.startswith("sicl."))
    base, _ = VARIANTS.get(name, (name, None))
    if base not in known(noun):
        raise OptionError(
            f"unknown {noun} {name!r}; known: {', '.join(names(noun))}, or your own as "
            f'"package.module:Class".{nearest(name, names(noun))}'
        )
    return _built_in(noun, base)


@cache
def _built_in(noun: str, name: str) -> Kind:
    spec = known(noun)[name]
    # Records name a class by this path; a file that moves inside the package must not change it.
    stream = f"sicl.streams.{'noisy' if name == 'noisy' else 'kinds'}"
    homes = {"method": f"sicl.adapt.{name}", "calibrator": f"sicl.calibrate.{name}", "stream": stream}
    return kind_of(f"{homes[noun]}:{spec.__name__}", spec)


def check_dataset(name: str) -> None:
    """Raise `OptionError` unless a data set of that name could exist."""
    base, _, option = name.partition(":")
    if base == "folder" and option:
        return
    if base in ("imagenet", "imagenet-c") and option in ("", "1k", "5k", "50k"):
        return
    if OWN.fullmatch(name) and base not in DATASETS:
        import_own_maker(name)
        return
    if option or name not in DATASETS or name == "folder:PATH":
        raise OptionError(
            f"unknown data set {name!r}; known: {', '.join(DATASETS)}.{nearest(name, DATASETS)}"
        )


def import_own(path: str) -> Any:
    """Return an object of the user's own code.

    Raises:
        OptionError: the module or the name in it is missing, or it is Python's own.
    """
    module, _, name = path.partition(":")
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise OptionError(f"{path!r} is of Python's standard library; name a module of your own.")
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # Whatever a module does when it is imported.
        told = error if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise OptionError(
            f"{path!r} cannot be imported ({told}); install the package or set PYTHONPATH to its folder."
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            public = [word for word in getattr(found, "__dict__", {}) if not word.startswith("_")]
            raise OptionError(f"{module!r} has no {part!r}.{nearest(part, public)}")
        found = getattr(found, part)
    return found


def import_own_maker(path: str) -> Any:
    """Return the user's own function or class that makes a data set or model, or the model itself.

    Raises:
        OptionError: it is something else.
    """
    from torch import nn

    found = import_own(path)
    if not (inspect.isfunction(found) or inspect.isclass(found) or isinstance(found, nn.Module)):
        raise OptionError(
            f"{path!r} must be a function or class of yours that makes it, got {type(found).__name__}."
        )
    return found


def own_modules(table: Mapping[str, Any]) -> list[str]:
    """Return the modules, other than `sicl` itself, that checking and running a plan imports."""
    words: list[Any] = []
    for noun in ("datasets", "models", "methods", "calibrators", "streams"):
        entries = table.get(noun, [])
        for entry in entries if isinstance(entries, list | tuple) else [entries]:
            options = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
            load = options.get("load")
            confidence = options.get("confidence")
            words += [options.get(key) for key in ("name", "source", "ood", "base")]
            words += list(load.values()) if isinstance(load, Mapping) else [load]
            words.append(confidence.get("name") if isinstance(confidence, Mapping) else confidence)
    paths = [word for word in words if isinstance(word, str) and OWN.fullmatch(word)]
    found = dict.fromkeys(path.partition(":")[0] for path in paths)
    return [name for name in found if name.split(".")[0] not in (*PLACES, *MODEL_LIBRARIES, "sicl")]


def build(item: Mapping[str, Any], noun: str) -> Any:
    """Return the spec object that a cell's `method`, `calibrators` or `stream` entry describes.

    Lists become tuples; `confidence` (of SoTTA) may be a calibrator's name, or a table with a `name`.
    """
    spec = find_kind(noun, item["name"]).spec
    frozen: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in item["options"].items()
    }
    if isinstance(frozen.get("confidence"), str | Mapping):
        frozen["confidence"] = _calibrator(frozen["confidence"])
    preset = item.get("preset") if noun == "calibrator" else None
    return getattr(spec, preset)(**frozen) if preset else spec(**frozen)


def _calibrator(value: str | Mapping[str, Any]) -> Any:
    table = {"name": value} if isinstance(value, str) else dict(value)
    name = table.pop("name", "")
    if not isinstance(name, str):
        raise OptionError(
            f"`confidence` must be a calibrator's name or a table with a `name`, got {value!r}."
        )
    preset = VARIANTS[name][1] if name in VARIANTS else None
    return build({"name": name, "options": table, "preset": preset}, "calibrator")


@cache
def preset_basis(name: str) -> str:
    """Return a hash of what a calibrator's preset sets, so that another formula makes another cell."""
    made = build({"name": name, "options": {}, "preset": VARIANTS[name][1]}, "calibrator")
    return hashlib.sha256(repr(sorted(asdict(made).items())).encode()).hexdigest()[:12]


def base_class(noun: str) -> type:
    """Return the class that every method, calibrator or stream derives from."""
    room, _, base = REGISTRIES[noun]
    found: type = getattr(importlib.import_module(room), base)
    return found
