"""What a training run does, as one frozen object that is also its label and its resume key."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from sicl.errors import OptionError, require_between, require_choice, require_positive
from sicl.models.checkpoint import ModelConfig
from sicl.models.cifar import ARCHITECTURES, CIFAR10_MEAN, CIFAR10_STD, CIFAR100_MEAN, CIFAR100_STD
from sicl.spec import Spec

NORMALISATION = {"cifar10": (CIFAR10_MEAN, CIFAR10_STD), "cifar100": (CIFAR100_MEAN, CIFAR100_STD)}
"""The mean and standard deviation that the networks of a data set normalise with."""


@dataclass(frozen=True, kw_only=True)
class TrainSpec(Spec):
    """A training run. The defaults are the paper's recipe for ResNets; `recipe` gives the others.

    Args:
        arch: a name in `ARCHITECTURES`.
        width: channels of the first stage (ResNet) or of a head (ViT).
        n_classes: size of the output.
        mean: per-channel mean the network takes from the images.
        std: per-channel standard deviation it divides them by.
        epochs: passes over the training images.
        batch_size: images a step; the last, smaller batch of an epoch is dropped.
        optimizer: "sgd" (Nesterov) or "adamw" (no decay on biases, norms, tokens and positions).
        lr: the highest learning rate; cosine to 0 over all steps.
        momentum: of SGD.
        weight_decay: on all parameters (SGD) or on matrices and kernels (AdamW).
        warmup_epochs: the learning rate rises linearly over so many epochs first (at most half of all).
        label_smoothing: share of the target spread over all classes; moves the source model's confidence.
        clip_norm: largest norm of the gradient; 0 does not clip.
        crop_padding: random crops of the image padded with so many black pixels.
        flip: mirror half of the images.
        jitter: strength of random brightness, contrast and saturation.
        affine: strength of random rotation, shear and scale.
        cutout: side of a square of each image that is blanked; 0 for none.
        mix: share of the batches that are mixed with another order of themselves, half by CutMix, half by Mixup.
        ema: decay of an average of the weights that is validated and saved in their place; 0 for none.
        precision: "float32", or "bfloat16" for autocast.
        channels_last: keep images and kernels in the channels-last layout.
        seed: of the weights, the order and the augmentation.
    """

    arch: str = "resnet18"
    width: int = 64
    n_classes: int = 10
    mean: tuple[float, ...] = CIFAR10_MEAN
    std: tuple[float, ...] = CIFAR10_STD
    epochs: int = 200
    batch_size: int = 128
    optimizer: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    warmup_epochs: float = 0.0
    label_smoothing: float = 0.0
    clip_norm: float = 0.0
    crop_padding: int = 4
    flip: bool = True
    jitter: float = 0.0
    affine: float = 0.0
    cutout: int = 0
    mix: float = 0.0
    ema: float = 0.0
    precision: Literal["float32", "bfloat16"] = "float32"
    channels_last: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        _ = self.model  # checked when made
        require_positive(epochs=self.epochs, batch_size=self.batch_size, lr=self.lr)
        require_between(0.0, 1.0, jitter=self.jitter, affine=self.affine, mix=self.mix)
        require_between(
            0.0, 0.9999999, momentum=self.momentum, label_smoothing=self.label_smoothing, ema=self.ema
        )
        require_between(
            0.0,
            float("inf"),
            weight_decay=self.weight_decay,
            warmup_epochs=self.warmup_epochs,
            clip_norm=self.clip_norm,
            crop_padding=self.crop_padding,
            cutout=self.cutout,
            seed=self.seed,
        )

    @property
    def model(self) -> ModelConfig:
        """The network's own configuration."""
        return ModelConfig(
            arch=self.arch, width=self.width, n_classes=self.n_classes, mean=self.mean, std=self.std
        )

    def to_json(self) -> str:
        """Return all fields as one line of JSON."""
        return json.dumps(asdict(self))


def _paper(arch: str) -> TrainSpec:
    if arch.startswith("vit"):
        return replace(_fast(arch), batch_size=128, lr=5e-4, epochs=200, precision="float32")
    return TrainSpec(arch=arch)


def _fast(arch: str) -> TrainSpec:
    common: dict[str, Any] = {"arch": arch, "batch_size": 512, "precision": "bfloat16"}
    if arch.startswith("vit"):
        return TrainSpec(
            **common,
            epochs=100,
            optimizer="adamw",
            lr=1e-3,
            weight_decay=0.05,
            warmup_epochs=5,
            clip_norm=1.0,
            jitter=0.3,
            affine=0.5,
            cutout=8,
            mix=0.5,
        )
    spec = TrainSpec(**common, epochs=40, lr=0.4, warmup_epochs=4, channels_last=True)
    if arch.endswith("_gn"):
        # Without batch norm nothing tames a step of that size; and torch before 2.15 crashes on a CPU when only a
        # group norm's own parameters get gradients from channels-last features, as under TENT.
        return replace(spec, lr=0.2, clip_norm=1.0, channels_last=False)
    return spec


RECIPES = {"paper": _paper, "fast": _fast}
"""Recipes by name: the paper's, and one for a GPU; each takes an architecture's name."""


def recipe(name: str, arch: str) -> TrainSpec:
    """Return a recipe's spec for an architecture; change it with `dataclasses.replace`."""
    require_choice(RECIPES, recipe=name)
    require_choice(ARCHITECTURES, arch=arch)
    return RECIPES[name](arch)


def parse_options(options: Iterable[str]) -> dict[str, Any]:
    """Return `NAME=VALUE` strings as fields of `TrainSpec`, in the fields' types.

    Raises:
        OptionError: an unknown name, or a value of the wrong type.
    """
    types = {field.name: type(field.default) for field in fields(TrainSpec)}
    chosen: dict[str, Any] = {}
    for option in options:
        name, found, text = option.partition("=")
        if not found:
            raise OptionError(f"`set` must be NAME=VALUE, got {option!r}.")
        require_choice(types, set=name)
        try:
            chosen[name] = _parse(text, types[name])
        except ValueError as error:
            raise OptionError(f"`{name}` must be a {types[name].__name__}, got {text!r}.") from error
    return chosen


def _parse(text: str, kind: type) -> Any:
    if kind is bool:
        return ("false", "true").index(text.lower()) == 1
    if kind is tuple:
        return tuple(float(part) for part in text.split(","))
    return kind(text)
