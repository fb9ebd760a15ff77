"""What a plan can name: methods, calibrators, streams, data sets and models, the user's own included."""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Mapping
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from sicl.bench.plan.declared import Kind, declared_kind, function_source, imported_kind, literal, registry
from sicl.data.load import DATASETS
from sicl.errors import OptionError, nearest

OWN = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
"""How a name from the user's own code looks: "package.module:Name"."""

MODEL_LIBRARIES = ("timm", "torchvision", "hf", "imagenet-resnet50")
NEEDS_SOURCE = ("eata", "temperature_scaling", "transcal")
"""The built-in methods and calibrators that need labelled source data."""

NEEDS_BATCH_NORM = ("batchnorm",)
"""The built-in methods that need batch normalisation layers, which transformers do not have."""

VARIANTS = {"sicl_paper": ("sicl", "paper")}
"""Names that stand for a class and one of its presets."""

_HOMES = {
    "method": ("sicl.adapt", "METHODS"),
    "calibrator": ("sicl.calibrate", "CALIBRATORS"),
    "stream": ("sicl.streams.make", "STREAMS"),
}


def corruptions() -> tuple[str, ...]:
    """Return the fifteen corruptions of the benchmark."""
    return tuple(literal("sicl.corruptions._constants", "CORRUPTIONS"))


def domains() -> tuple[str, ...]:
    """Return all that a stream's corruption may be."""
    return ("clean", *corruptions(), *literal("sicl.corruptions._constants", "VALIDATION_CORRUPTIONS"))


def names(noun: str) -> list[str]:
    """Return the built-in names of methods, calibrators or streams."""
    known = list(registry(*_HOMES[noun]))
    return [*known, *VARIANTS] if noun == "calibrator" else known


def find_kind(noun: str, name: str) -> Kind:
    """Return the spec class that a name stands for.

    Args:
        noun: "method", "calibrator" or "stream".
        name: a built-in name, or "package.module:Class" for one's own.

    Raises:
        OptionError: the name is unknown, or cannot be imported.
    """
    if OWN.fullmatch(name):
        try:
            return declared_kind(name) if name.startswith("sicl.") else imported_kind(name, import_own(name))
        except LookupError:
            return imported_kind(name, import_own(name))
    known = registry(*_HOMES[noun])
    base, _ = VARIANTS.get(name, (name, None))
    if base not in known:
        raise OptionError(
            f"unknown {noun} {name!r}; known: {', '.join(names(noun))}, or your own as "
            f'"package.module:Class".{nearest(name, names(noun))}'
        )
    return declared_kind(known[base])


def check_dataset(name: str) -> None:
    """Raise `OptionError` unless a data set of that name could exist."""
    base, _, option = name.partition(":")
    if base == "folder" and option:
        return
    if base in ("imagenet", "imagenet-c") and option in ("", "1k", "5k", "50k"):
        return
    if OWN.fullmatch(name) and base not in DATASETS:
        import_own(name)
        return
    if option or name not in DATASETS:
        raise OptionError(
            f"unknown data set {name!r}; known: {', '.join(DATASETS)}.{nearest(name, DATASETS)}"
        )


def import_own(path: str) -> Any:
    """Return an object of the user's own code.

    Raises:
        OptionError: the module or the name in it is missing.
    """
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        raise OptionError(
            f"{path!r} cannot be imported ({error}); install the package or set PYTHONPATH to its folder."
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            public = [known for known in vars(found) if not known.startswith("_")]
            raise OptionError(f"{module!r} has no {part!r}.{nearest(part, public)}")
        found = getattr(found, part)
    return found


def build(path: str, options: Mapping[str, Any], preset: str | None = None) -> Any:
    """Return the spec object: `Class(**options)`, or `Class.preset(**options)`.

    Lists become tuples; `confidence` (of SoTTA) may be a calibrator's name, or a table with a `name`.
    """
    spec = import_own(path)
    frozen: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in options.items()
    }
    if isinstance(frozen.get("confidence"), str | Mapping):
        frozen["confidence"] = _calibrator(frozen["confidence"])
    return getattr(spec, preset)(**frozen) if preset else spec(**frozen)


def _calibrator(value: str | Mapping[str, Any]) -> Any:
    table = {"name": value} if isinstance(value, str) else dict(value)
    name = str(table.pop("name", ""))
    preset = VARIANTS[name][1] if name in VARIANTS else None
    return build(find_kind("calibrator", name).path, table, preset)


def preset_options(kind: Kind, dataset: str, preset: str, architecture: str) -> dict[str, Any]:
    """Return the options that a method's preset sets for a (clean) data set; none for a user's own method.

    Raises:
        OptionError: there is no such preset, or none for the data set.
    """
    name = kind.path.partition(":")[2]
    found: dict[str, Any] = _method_presets().preset_options(name, dataset, preset, architecture)
    return found


@cache
def _preset_basis(path: str, preset: str) -> str:
    kind = declared_kind(path)
    defaults = {name: repr(option.default) for name, option in kind.options.items()}
    code = function_source(path, preset)
    return hashlib.sha256(f"{defaults} {code}".encode()).hexdigest()[:12]


def preset_basis(kind: Kind, preset: str) -> str:
    """Return a hash of what a preset of a `sicl` class is made from: its code and the class's defaults."""
    return _preset_basis(kind.path, preset)


@cache
def _method_presets() -> Any:
    """Load the table of presets by its file: importing it would import its package, and torch with it."""
    path = Path(__file__).parents[2] / "adapt" / "_presets.py"
    spec = spec_from_file_location("sicl.bench._method_presets", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def base_class(noun: str) -> type:
    """Return the class that every method, calibrator or stream derives from."""
    homes = {
        "method": "sicl.adapt:Method",
        "calibrator": "sicl.calibrate:Calibrator",
        "stream": "sicl.streams:Stream",
    }
    found: type = import_own(homes[noun])
    return found
