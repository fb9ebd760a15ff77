"""Which parts of a plan go together: weights that exist, norms a method needs, source data to fit on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from sicl.bench.plan import registry
from sicl.bench.plan.entries import Entry, Problems
from sicl.bench.plan.registry import is_plain
from sicl.errors import OptionError, nearest, require_choice, require_positive, shown

SOURCE_SETS = ("demo", "cifar10", "cifar100", "imagenet")
"""The data sets that have a source validation split."""

SOURCE_N = 2000
CHECKPOINTS = (".safetensors", ".pt", ".pth")


def clean_name(dataset: str) -> str:
    """Return the name of a data set without corruption and protocol: "imagenet-c:5k" is "imagenet"."""
    return dataset.partition(":")[0].removesuffix("-c")


def architecture(entry: Entry) -> str:
    """Return "vit" or "resnet", from what a model is called."""
    words = " ".join(str(entry.options.get(key, "")) for key in ("arch", "load"))
    return "vit" if "vit" in f"{entry.name} {entry.label} {words}".lower() else "resnet"


def model_source(model: Entry, dataset: Entry, seed: int) -> str:
    """Return what `load_model` is given; `{dataset}`, `{model}` and `{seed}` are filled in.

    `load` may be a table by clean data set: {cifar10 = "a.safetensors", imagenet = "torchvision:resnet50"}.
    """
    clean = clean_name(dataset.name)
    given = model.options.get("load", model.name)
    if isinstance(given, Mapping):
        if clean not in given:
            raise OptionError(f"`load` has no weights for {clean!r}, only for {', '.join(given)}.")
        given = given[clean]
    if not isinstance(given, str):
        raise OptionError(f"`load` must be a text, or a table of texts by data set, got {shown(given)}.")
    words = {"dataset": clean, "model": model.label, "seed": str(seed)}
    for word, value in words.items():
        given = given.replace(f"{{{word}}}", value)
    return given


def needs_source(entry: Entry) -> bool:
    """Say whether a method or calibrator needs labelled source data."""
    asks = entry.name in registry.NEEDS_SOURCE or bool(
        entry.kind and getattr(entry.kind.spec, "needs_source", False)
    )
    return asks or bool(entry.options.get("fitted"))


def source_of(dataset: Entry, users: Sequence[Entry]) -> dict[str, Any] | None:
    """Return where the labelled source data come from, if anything needs them."""
    if not any(needs_source(entry) for entry in users):
        return None
    name = dataset.options.get("source", dataset.name)
    return {"name": name, "split": "val", "n": dataset.options.get("source_n", SOURCE_N)}


def check_combination(
    dataset: Entry, model: Entry, method: Entry, calibrators: Sequence[Entry], problems: Problems
) -> None:
    """Keep a problem for each pair that cannot work, as far as names tell."""
    if method.name in registry.NEEDS_BATCH_NORM and architecture(model) == "vit":
        problems.add(
            f"method {method.label!r}",
            f"needs batch norms, which the model {model.label!r} does not have; keep it to other models with "
            "`models`, or leave one out.",
        )
    problems.catch(f"method {method.label!r}", method_preset, method, dataset, model)
    wanting = [entry.label for entry in (method, *calibrators) if needs_source(entry)]
    name = str(dataset.options.get("source", dataset.name))
    has_source = clean_name(name) in SOURCE_SETS or registry.OWN.fullmatch(name)
    if wanting and not has_source:
        problems.add(
            f"dataset {dataset.label!r}",
            f"has no source validation data, which {', '.join(map(repr, wanting))} need; name a data set that "
            'has with `source = "cifar10"`.',
        )


def method_preset(method: Entry, dataset: Entry, model: Entry) -> dict[str, Any]:
    """Return the options that a method's preset sets for this data set and model."""
    if method.preset is None or method.kind is None:
        return {}
    chosen = {"preset": method.preset, "architecture": architecture(model)}
    made = method.kind.spec.for_dataset(clean_name(dataset.name), **chosen)  # type: ignore[attr-defined]
    values = {item.name: getattr(made, item.name) for item in fields(made)}
    return {name: value for name, value in values.items() if is_plain(value)}


def check_models(pairs: Iterable[tuple[Entry, Entry]], seeds: Sequence[int], problems: Problems) -> None:
    """Keep a problem for each model that is unknown or whose weights are missing."""
    distinct = {(dataset.name, model.label): (dataset, model) for dataset, model in pairs}
    for dataset, model in distinct.values():
        for seed in seeds:
            problems.catch(f"model {model.label!r}", _check_model, model, dataset, seed)


def _check_model(model: Entry, dataset: Entry, seed: int) -> None:
    load = model_source(model, dataset, seed)
    scheme, _, rest = load.partition(":")
    if load == "demo" or (rest and scheme in registry.MODEL_LIBRARIES):
        return
    if Path(load).suffix in CHECKPOINTS:
        if not os.path.isfile(load):
            raise OptionError(f"the weights `{load}` are missing; name an existing file with `load`.")
        return
    if registry.OWN.fullmatch(load):
        registry.import_own_maker(load)
        return
    known = ["demo", *(f"{library}:NAME" for library in registry.MODEL_LIBRARIES)]
    raise OptionError(
        f"unknown model {load!r}; known: {', '.join(known)}, a checkpoint file, or your own as "
        f'"package.module:function".{nearest(load, known)}'
    )


def check_values(entries: dict[str, list[Entry]], problems: Problems) -> None:
    """Make each method, calibrator and own stream, so that a wrong value shows now."""
    for noun in ("method", "calibrator", "stream"):
        for entry in entries[noun]:
            if entry.kind is not None and (entry.kind.own or noun != "stream"):
                item = {"name": entry.name, "options": entry.options, "preset": entry.preset}
                problems.catch(f"{noun} {entry.label!r}", registry.build, item, noun)
    for entry in entries["dataset"]:
        where, options = f"dataset {entry.label!r}", entry.options
        problems.catch(where, registry.check_dataset, entry.name)
        problems.catch(where, require_positive, source_n=options.get("source_n", 1))
        problems.catch(where, require_choice, ("test", "train", "val"), split=options.get("split", "test"))
