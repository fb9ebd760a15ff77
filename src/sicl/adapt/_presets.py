"""The published hyper-parameters of every method, for each data set, as one table."""

from __future__ import annotations

from typing import Any, Literal

from sicl.errors import require_choice

Preset = Literal["paper", "official"]
Architecture = Literal["resnet", "vit"]

DATASETS = ("cifar10", "cifar100", "imagenet")
_SAME_AS = {"demo": "cifar10"}

_THRESHOLDS = {"cifar10": 0.99, "cifar100": 0.66, "imagenet": 0.33}
_CIFAR_ADAM = {"lr": 1e-3, "optimizer": "adam"}
_IMAGENET_SGD = {"lr": 2.5e-4, "optimizer": "sgd"}


def _by_dataset(cifar: dict[str, Any], imagenet: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {"cifar10": cifar, "cifar100": cifar, "imagenet": imagenet}


PAPER: dict[str, dict[str, dict[str, Any]]] = {
    "Tent": _by_dataset(_CIFAR_ADAM, _IMAGENET_SGD),
    "Eata": _by_dataset(
        {"lr": 0.005, "similarity": 0.4, "fisher_alpha": 1.0},
        {"lr": 2.5e-4, "similarity": 0.05, "fisher_alpha": 2000.0},
    ),
    "Sar": {name: {"lr": 2.5e-4, "rho": 0.5} for name in DATASETS},
    "Rotta": {name: {"lr": 1e-3, "alpha": 0.05, "nu": 0.001} for name in DATASETS},
    "Sotta": {name: {"lr": 1e-3, "rho": 0.5, "threshold": _THRESHOLDS[name]} for name in DATASETS},
}
"""What the SICL paper's appendix prints ("Baseline Details"); methods that are not here have no options."""

_CIFAR_COTTA = {**_CIFAR_ADAM, "restore": 0.01, "loss": "cross_entropy"}

SINCE: dict[str, dict[str, dict[str, Any]]] = {
    "Come": _by_dataset(_CIFAR_ADAM, _IMAGENET_SGD),
    "Deyo": _by_dataset({**_CIFAR_ADAM, "threshold": 0.2}, {**_IMAGENET_SGD, "threshold": 0.3}),
    "Cotta": {
        "cifar10": {**_CIFAR_COTTA, "threshold": 0.92},
        "cifar100": {**_CIFAR_COTTA, "threshold": 0.72},
        "imagenet": {"lr": 0.01, "optimizer": "sgd", "restore": 0.001, "threshold": 0.1, "loss": "symmetric"},
    },
    "Roid": _by_dataset(_CIFAR_ADAM, _IMAGENET_SGD),
}
"""Methods that the paper does not have: under both presets their authors' options (COME has none for CIFAR: TENT's;
DeYO's and ROID's for CIFAR are those of the common benchmark by ROID's authors)."""

OFFICIAL: dict[str, dict[str, Any]] = {"Sar": {"rho": 0.05}, "Sotta": {"rho": 0.05}}
"""Where the methods' authors differ from it, on every data set."""

VIT: dict[str, dict[str, Any]] = {"Sar": {"lr": 1e-3}, "Come": {"lr": 1e-3}, "Deyo": {"lr": 1e-3}}
"""What both change for vision transformers."""


def preset_options(method: str, dataset: str, preset: str, architecture: str) -> dict[str, Any]:
    """Return the options that `preset` sets for a method's class name."""
    require_choice((*DATASETS, *_SAME_AS), name=dataset)
    require_choice(("paper", "official"), preset=preset)
    require_choice(("resnet", "vit"), architecture=architecture)
    options = dict({**PAPER, **SINCE}.get(method, {}).get(_SAME_AS.get(dataset, dataset), {}))
    if preset == "official":
        options |= OFFICIAL.get(method, {})
    if architecture == "vit":
        options |= VIT.get(method, {})
    return options
