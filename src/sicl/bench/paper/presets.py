"""The paper's tables and figures as plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sicl.bench.plan.plan import BenchPlan, load_plan
from sicl.bench.tables.names import CALIBRATOR_NAMES
from sicl.bench.tables.printed import CORRUPTIONS
from sicl.errors import OptionError, require_choice

METHODS = ("tent", "eata", "sar", "rotta", "sotta")
VIT_METHODS = ("tent", "sar")
QUICK_CORRUPTIONS = ("gaussian_noise", "contrast", "jpeg_compression")

ARCHITECTURES = {
    "resnet18": "resnet18",
    "resnet50": "resnet50",
    "resnet101": "resnet101",
    "vit": "vit_small",
    "vit_tiny": "vit_tiny128",
}
"""File names of source models by network; ViT-Tiny (128 pixels) is ours, not the paper's."""
IMAGENET = {
    "resnet18": "torchvision:resnet18",
    "resnet50": "torchvision:resnet50",
    "resnet101": "torchvision:resnet101",
    "vit": "timm:vit_base_patch16_224",
    "vit_tiny": "timm:vit_tiny_patch16_224",
}
PROBE = "sicl.bench.paper.probes:{}"


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
        streams: the streams, given the corruptions and the number of images of each.
        predictions: whether the figure is computed from single predictions.
        quick_methods: the methods of the quick version.
        quick_n: its images of each corruption.
    """

    title: str
    datasets: tuple[str, ...] = ("cifar10-c",)
    models: tuple[str, ...] = ("resnet50",)
    methods: tuple[Any, ...] = METHODS
    calibrators: tuple[Any, ...] = tuple(CALIBRATOR_NAMES)
    seeds: tuple[int, ...] = (0, 1, 2)
    streams: Callable[[list[str], Choice], list[dict[str, Any]]] = field(default=lambda c, k: [_benign(c, k)])
    predictions: bool = False
    quick_methods: tuple[str, ...] = ("tent",)
    quick_n: int = 256

    def table(self, name: str, choice: Choice) -> dict[str, Any]:
        """Return the plan as a table, as a TOML file would have it."""
        if choice.quick and choice.n is None:
            choice = replace(choice, n=self.quick_n)
        corruptions = list(choice.corruptions or (QUICK_CORRUPTIONS if choice.quick else CORRUPTIONS))
        datasets = list(choice.datasets or (("demo",) if choice.quick else self.datasets))
        models = list(choice.models or (("demo",) if choice.quick else self.models))
        wanted = choice.methods or (self.quick_methods if choice.quick else ())
        methods = [_method(item) for item in self.methods]
        if wanted:
            require_each([method["label"] for method in methods], "methods", wanted)
            methods = [method for method in methods if method["label"] in wanted]
        return {
            "name": f"{name}-quick" if choice.quick else name,
            "predict": "after",
            "seeds": list(choice.seeds or ((0,) if choice.quick else self.seeds)),
            "datasets": [{"name": item, "label": item.partition(":")[0]} for item in datasets],
            "models": [_model(item, datasets, choice, [m["label"] for m in methods]) for item in models],
            "methods": methods,
            "calibrators": list(self.calibrators),
            "streams": self.streams(corruptions, choice),
        }

    def plan(self, name: str, choice: Choice) -> BenchPlan:
        """Return the plan; raises `OptionError` with all that is missing."""
        return load_plan(self.table(name, choice))


def require_each(known: Sequence[str], argument: str, values: Sequence[str]) -> None:
    """Raise `OptionError` unless every value is known."""
    for value in values:
        require_choice(known, **{argument: value})


def _method(item: Any) -> dict[str, Any]:
    table = {"name": item} if isinstance(item, str) else dict(item)
    return {"preset": "paper", "label": table["name"], **table}


def _model(name: str, datasets: Sequence[str], choice: Choice, methods: list[str]) -> dict[str, Any]:
    if name == "demo":
        return {"name": "demo", "load": "demo"}
    require_choice((*ARCHITECTURES, "demo"), models=name)
    clean = [item.partition(":")[0].removesuffix("-c") for item in datasets]
    load = {item: _weights(item, name, choice) for item in clean}
    limits = (
        {"methods": [method for method in methods if method in VIT_METHODS]} if name.startswith("vit") else {}
    )
    return {"name": name, "load": load, **limits}


def _weights(dataset: str, model: str, choice: Choice) -> str:
    """Return the weights' path, with `{seed}` where there is one file a seed; for ImageNet a library's else."""
    found = (
        list(choice.weights.glob(f"{dataset}-{ARCHITECTURES[model]}*.safetensors")) if choice.weights else []
    )
    if dataset == "imagenet" and not found:
        return IMAGENET[model]
    if choice.weights is None:
        raise OptionError(
            f"`weights` must be the folder with {dataset}-{ARCHITECTURES[model]}-seed0.safetensors and so on; make "
            "them with `sicl train`, or try --quick."
        )
    stem = choice.weights / f"{dataset}-{ARCHITECTURES[model]}"
    plain, seeded = f"{stem}.safetensors", f"{stem}-seed{{seed}}.safetensors"
    if any(choice.weights.glob(f"{stem.name}-seed*.safetensors")) or not Path(plain).is_file():
        return seeded
    return plain


def _limit(choice: Choice, key: str) -> dict[str, Any]:
    return {"batch_size": choice.batch_size, **({} if choice.n is None else {key: choice.n})}


def _benign(corruptions: list[str], choice: Choice) -> dict[str, Any]:
    return {"name": "benign", "corruptions": corruptions, **_limit(choice, "n")}


def _both(corruptions: list[str], choice: Choice) -> list[dict[str, Any]]:
    dynamic = {"name": "dynamic", "corruptions": corruptions, **_limit(choice, "per_corruption")}
    return [_benign(corruptions, choice), dynamic]


def _figure2(corruptions: list[str], choice: Choice) -> list[dict[str, Any]]:
    continual = {"name": "continual", "corruptions": corruptions, **_limit(choice, "per_corruption")}
    return [continual, _benign(corruptions[:1], choice)]


def _severities(corruptions: list[str], choice: Choice) -> list[dict[str, Any]]:
    return [{**_benign(corruptions, choice), "severity": [1, 3, 5] if choice.quick else [1, 2, 3, 4, 5]}]


def _noisy(corruptions: list[str], choice: Choice) -> list[dict[str, Any]]:
    other = "noise" if choice.quick else "mnist"
    return [{"name": "noisy", "ood": other, "corruptions": corruptions, **_limit(choice, "n")}]


def _filtered(corruptions: list[str], choice: Choice) -> list[dict[str, Any]]:
    """Return the noisy streams that SoTTA is measured on: with digits, and with uniform noise."""
    stream = {"name": "noisy", "corruptions": corruptions, **_limit(choice, "n")}
    noise = {**stream, "label": "noisy, noise", "ood": "noise"}
    return [noise] if choice.quick else [{**stream, "label": "noisy, mnist", "ood": "mnist"}, noise]


def _dynamic(corruptions: list[str], choice: Choice) -> list[dict[str, Any]]:
    return [_both(corruptions, choice)[1]]


def _style(label: str, **options: Any) -> dict[str, Any]:
    """Return the printed style votes without the relaxation, which hides everything else on a healthy model."""
    return {"name": "sicl_paper", "label": label, "relaxation": "none", **options}


def _probes(kind: str, *names: str) -> tuple[dict[str, Any], ...]:
    return tuple({"name": PROBE.format(kind), "label": name, "kind": name} for name in names)


_VARIANTS = (5, 10, 15, 20, 30, 40)
MEMBERS = ("softmax", "mirror", "crop", "style")
"""The questions of our default, each left out in turn."""
_STAGES = ("layer1", "layer2", "layer3", "layer4")
_FIGURE6 = (
    "sicl_paper",
    _style("style votes"),
    _style("mean only", components="mean"),
    _style("std only", components="std"),
    _style("mixstyle", style="mixstyle"),
    {"name": "sicl_paper", "label": "style votes, guard", "relaxation": "guard"},
    *(_style(f"style votes, N = {n}", variants=n) for n in _VARIANTS if n != 20),
    "sicl",
    *(
        {"name": "sicl", "label": f"sicl, no {name}", "members": [m for m in MEMBERS if m != name]}
        for name in MEMBERS
    ),
    {"name": "sicl", "label": "sicl, no guard", "relaxation": "none"},
)
_SOTTA_SICL = {"name": "sotta", "label": "sotta+sicl", "confidence": "sicl"}

PRESETS: dict[str, Preset] = {
    "table2": Preset(
        title="Main table: ECE of five calibrators on both streams, three data sets, three networks",
        datasets=("cifar10-c", "cifar100-c", "imagenet-c"),
        models=("resnet50", "resnet101", "vit"),
        streams=_both,
    ),
    "table3": Preset(title="CIFAR-10-C by corruption, ResNet-18", models=("resnet18",)),
    "table4": Preset(
        title="CIFAR-100-C by corruption, ResNet-18", datasets=("cifar100-c",), models=("resnet18",)
    ),
    "figure2": Preset(
        title="Reliability and sliding-window ECE: a fixed model over changing corruptions, TENT on one",
        # The paper's "fixed model" has an ECE of 20 % on noise: its weights are fixed, its statistics are not.
        methods=("batchnorm", "tent", "source"),
        calibrators=("softmax",),
        streams=_figure2,
        seeds=(0,),
        predictions=True,
        quick_methods=("batchnorm", "tent"),
        # Windows and halves of a stream want more samples than means do.
        quick_n=1024,
    ),
    "figure3": Preset(
        title="Style against content perturbation, and the ContentVariance of dropout and MixStyle",
        methods=("tent",),
        calibrators=(*_probes("Perturbed", "content"), *_probes("Measured", "style", "mixstyle", "dropout")),
        seeds=(0,),
    ),
    "figure5": Preset(
        title="ContentVariance and StyleVariance of SICL's style perturbation, MixStyle and dropout",
        methods=("tent",),
        calibrators=_probes("Measured", "style", "mixstyle", "dropout"),
        seeds=(0,),
    ),
    "figure6": Preset(
        title="Ablations: components, relaxation, number of variants (CIFAR-100-C)",
        datasets=("cifar100-c",),
        calibrators=_FIGURE6,
        quick_n=128,
    ),
    "figure7ab": Preset(
        title="ECE of right and of wrong predictions against severity, TENT",
        methods=("tent",),
        streams=_severities,
    ),
    "figure7c": Preset(
        title="SICL after each residual stage",
        calibrators=(
            *(_style(f"style votes, {name}", layer=name) for name in _STAGES),
            *({"name": "sicl", "label": f"sicl, {name}", "layer": name} for name in _STAGES),
        ),
    ),
    "figure8a": Preset(
        title="OOD detection: AUROC by corruption category on the noisy stream, TENT",
        methods=("tent",),
        calibrators=(*CALIBRATOR_NAMES, {"name": "sicl", "label": "content votes", "members": ["content"]}),
        streams=_noisy,
    ),
    "figure8b": Preset(
        title="SoTTA with SICL as its filter: accuracy on the noisy stream",
        methods=("sotta", _SOTTA_SICL),
        calibrators=("softmax",),
        streams=_filtered,
        quick_methods=("sotta", "sotta+sicl"),
    ),
    "figure9": Preset(
        title="The dynamic stream: which corruption comes when",
        methods=("source",),
        calibrators=("softmax",),
        streams=_dynamic,
        quick_methods=("source",),
        quick_n=64,
    ),
}
"""The tables and figures of the paper and its appendix, by the name the command line knows."""

ALIASES = {
    "table1": ("table2",),
    "table5": ("table3",),
    "table6": ("table4",),
    "figure7": ("figure7ab", "figure7c"),
    "figure8": ("figure8a", "figure8b"),
    "severity": ("figure7ab",),
    "layer": ("figure7c",),
    "ood": ("figure8a",),
    "sotta": ("figure8b",),
}
"""Other names: whole figures, what the paper's text calls its tables (5 and 6), and what they show."""


def presets_of(name: str) -> tuple[str, ...]:
    """Return the presets that a name stands for: itself, or those of a whole figure.

    Raises:
        OptionError: the name is not known.
    """
    require_choice((*PRESETS, *ALIASES), name=name)
    return ALIASES.get(name, (name,))
