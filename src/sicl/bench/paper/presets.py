"""The paper's tables and figures as plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sicl.bench.plan.combinations import clean_name
from sicl.bench.plan.plan import BenchPlan, load_plan
from sicl.bench.tables.names import CALIBRATOR_NAMES
from sicl.bench.tables.printed import CORRUPTIONS
from sicl.data.files import embedded
from sicl.errors import OptionError, require_choice

METHODS = ("tent", "eata", "sar", "rotta", "sotta")
VIT_METHODS = ("tent", "sar")
QUICK_CORRUPTIONS = ("gaussian_noise", "contrast", "jpeg_compression")

MEMBERS = ("softmax", "mirror", "crop", "repair", "style")
"""The questions of our default, each left out in turn."""

_FILE = embedded("sicl.bench.paper", "presets.json")
NETWORKS: dict[str, dict[str, str]] = _FILE["networks"]
"""By network, the file name of its source models and its ImageNet weights; ViT-Tiny is ours, not the paper's."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What a user narrows a preset to; empty means the paper's.

    Args:
        weights: the folder with `DATASET-ARCH-seedN.safetensors` (or `DATASET-ARCH.safetensors`) files.
        datasets: instead of the preset's.
        models: instead of the preset's.
        methods: instead of the preset's.
        corruptions: instead of all fifteen.
        seeds: instead of 0, 1, 2.
        n: images of each corruption; None takes all.
        batch_size: samples a batch.
        quick: the demonstration data and model, few corruptions, one method: minutes on a laptop.
    """

    weights: Path | None = None
    datasets: Sequence[str] = ()
    models: Sequence[str] = ()
    methods: Sequence[str] = ()
    corruptions: Sequence[str] = ()
    seeds: Sequence[int] = ()
    n: int | None = None
    batch_size: int = 64
    quick: bool = False


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A table or figure of the paper as a plan.

    Args:
        title: what it is.
        datasets, models, methods, calibrators, seeds: the paper's.
        streams: the paper's, each over all corruptions or the `first` so many.
        quick_streams: those of the quick version, where they are others.
        predictions: whether the figure is computed from single predictions.
        quick_methods: the methods of the quick version.
        quick_n: its images of each corruption.
    """

    title: str
    datasets: Sequence[str] = ("cifar10-c",)
    models: Sequence[str] = ("resnet50",)
    methods: Sequence[Any] = METHODS
    calibrators: Sequence[Any] = tuple(CALIBRATOR_NAMES)
    seeds: Sequence[int] = (0, 1, 2)
    streams: Sequence[dict[str, Any]] = ({"name": "benign"},)
    quick_streams: Sequence[dict[str, Any]] = ()
    predictions: bool = False
    quick_methods: Sequence[str] = ("tent",)
    quick_n: int = 256

    def table(self, name: str, choice: Choice) -> dict[str, Any]:
        """Return the plan as a table, as a TOML file would have it."""
        if choice.quick and choice.n is None:
            choice = replace(choice, n=self.quick_n)
        corruptions = list(choice.corruptions or (QUICK_CORRUPTIONS if choice.quick else CORRUPTIONS))
        datasets = list(choice.datasets or (("demo",) if choice.quick else self.datasets))
        models = list(choice.models or (("demo",) if choice.quick else self.models))
        streams = (choice.quick and self.quick_streams) or self.streams
        wanted = choice.methods or (self.quick_methods if choice.quick else ())
        methods = [_method(item) for item in self.methods]
        if wanted:
            for label in wanted:
                require_choice([method["label"] for method in methods], methods=label)
            methods = [method for method in methods if method["label"] in wanted]
        return {
            "name": f"{name}-quick" if choice.quick else name,
            "predict": "after",
            "seeds": list(choice.seeds or ((0,) if choice.quick else self.seeds)),
            "datasets": [{"name": item, "label": item.partition(":")[0]} for item in datasets],
            "models": [_model(item, datasets, choice, [m["label"] for m in methods]) for item in models],
            "methods": methods,
            "calibrators": list(self.calibrators),
            "streams": [_stream(item, corruptions, choice) for item in streams],
        }

    def plan(self, name: str, choice: Choice) -> BenchPlan:
        """Return the plan; raises `OptionError` with all that is missing."""
        return load_plan(self.table(name, choice))


def _method(item: Any) -> dict[str, Any]:
    table = {"name": item} if isinstance(item, str) else dict(item)
    return {"preset": "paper", "label": table["name"], **table}


def _model(name: str, datasets: Sequence[str], choice: Choice, methods: list[str]) -> dict[str, Any]:
    if name == "demo":
        return {"name": "demo", "load": "demo"}
    require_choice((*NETWORKS, "demo"), models=name)
    load = {clean: _weights(clean, name, choice) for clean in map(clean_name, datasets)}
    kept = [method for method in methods if method in VIT_METHODS]
    return {"name": name, "load": load, **({"methods": kept} if name.startswith("vit") else {})}


def _weights(dataset: str, model: str, choice: Choice) -> str:
    """Return the weights' path, with `{seed}` where there is one file a seed; for ImageNet a library's else."""
    stem = f"{dataset}-{NETWORKS[model]['file']}"
    found = choice.weights is not None and any(choice.weights.glob(f"{stem}*.safetensors"))
    if dataset == "imagenet" and not found:
        return NETWORKS[model]["imagenet"]
    if choice.weights is None:
        raise OptionError(
            f"`weights` must be the folder with {stem}-seed0.safetensors and so on; make them with `sicl train`, or "
            "try --quick."
        )
    plain = choice.weights / f"{stem}.safetensors"
    if any(choice.weights.glob(f"{stem}-seed*.safetensors")) or not plain.is_file():
        return str(choice.weights / f"{stem}-seed{{seed}}.safetensors")
    return str(plain)


def _stream(item: dict[str, Any], corruptions: Sequence[str], choice: Choice) -> dict[str, Any]:
    size = "n" if item["name"] in ("benign", "noisy") else "per_corruption"
    given = {key: value for key, value in item.items() if key != "first"}
    limit = {} if choice.n is None else {size: choice.n}
    return {
        **given,
        "corruptions": corruptions[: item.get("first")],
        "batch_size": choice.batch_size,
        **limit,
    }


PRESETS = {name: Preset(**told) for name, told in _FILE["presets"].items()}
"""The tables and figures of the paper and its appendix, by the name the command line knows.

The "fixed model" of figure 2 has an ECE of 20 % on noise: its weights are fixed, its statistics are not; and windows
and halves of a stream want more samples than means do. The style votes of figures 6 and 7 are the printed ones
without the relaxation, which hides everything else on a healthy model.
"""

ALIASES = {name: tuple(parts) for name, parts in _FILE["aliases"].items()}
"""Other names: whole figures, what the paper's text calls its tables (5 and 6), and what they show."""


def presets_of(name: str) -> tuple[str, ...]:
    """Return the presets that a name stands for: itself, or those of a whole figure.

    Raises:
        OptionError: the name is not known.
    """
    require_choice((*PRESETS, *ALIASES), name=name)
    return ALIASES.get(name, (name,))
