"""Trained classifiers by name: the embedded one, checkpoint files, and those of timm, torchvision and HF."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sicl.errors import DataError, OptionError, SiclError, nearest, require_path
from sicl.models.checkpoint import infer_config, load_state, read_checkpoint

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
DEMO_WEIGHTS = Path(__file__).parent / "_embedded" / "resnet18_w16_cifar10.safetensors"
"""The weights of `load_model("demo")`: a 16-wide ResNet-18 for CIFAR-10, in half precision."""


class Normalized(nn.Module):
    """A classifier that takes images in [0, 1]: normalises them, then runs `model` and returns its logits.

    Args:
        model: any classifier; an output object with a `logits` field is unwrapped.
        mean: per-channel mean taken from the images.
        std: per-channel standard deviation they are divided by.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        self.register_buffer("mean", torch.tensor(tuple(mean)).view(1, -1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(tuple(std)).view(1, -1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        out = self.model((images - self.mean) / self.std)
        logits: Tensor = out if isinstance(out, Tensor) else out.logits
        return logits


def load_model(
    name_or_path: str | Path,
    *,
    arch: str | None = None,
    n_classes: int | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    device: torch.device | str = "cpu",
) -> nn.Module:
    """Return a trained classifier in eval mode that takes float images in [0, 1].

    Args:
        name_or_path: "demo" (a small CIFAR-10 ResNet-18 inside the package), the path of a .safetensors, .pt
            or .pth checkpoint, "timm:NAME", "torchvision:NAME", "hf:NAME" (with the extra of that name),
            or "imagenet-resnet50:PATH" (a ResNet-50 in the Keras layout, exported to tfjs).
        arch: for a checkpoint, its architecture ("resnet18", "resnet50", "resnet101", "vit_small", or
            "timm:NAME", "torchvision:NAME"); None reads it from the file.
        n_classes: the number of classes the model must have; None accepts any.
        mean: normalisation for a checkpoint; None takes the file's own, else CIFAR-10's.
        std: as `mean`.
        device: where the model goes.

    Raises:
        DataError: the file is missing, damaged or does not fit the architecture.
        OptionError: the name is unknown, the extra is not installed, or the number of classes differs.
    """
    name = str(name_or_path)
    scheme, _, rest = name.partition(":")
    if name == "demo":
        model = _from_checkpoint(DEMO_WEIGHTS, None, None, mean, std)
    elif rest and scheme in _LIBRARIES:
        model = _LIBRARIES[scheme](rest, True, None)
    elif rest and scheme == "imagenet-resnet50":
        from sicl.models.imagenet import load_keras_resnet50

        model = load_keras_resnet50(rest)
    else:
        _require_path(name)
        model = _from_checkpoint(Path(name), arch, n_classes, mean, std)
    found = count_classes(model)
    if n_classes is not None and found != n_classes:
        raise OptionError(
            f"`n_classes` must be {found} for {name!r}, got {n_classes}; leave it out or retrain."
        )
    return model.eval().to(device)


def _require_path(name: str) -> None:
    require_path(name_or_path=name)
    if Path(name).suffix or Path(name).exists():
        return
    known = ["demo", *(f"{library}:NAME" for library in _LIBRARIES), "imagenet-resnet50:PATH"]
    raise OptionError(
        f"`name_or_path` must be a checkpoint file or one of {', '.join(known)}; got {name!r}."
        f"{nearest(name, known)}"
    )


def _from_checkpoint(
    path: Path,
    arch: str | None,
    n_classes: int | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
) -> nn.Module:
    state, metadata = read_checkpoint(path)
    scheme, _, rest = (arch or metadata.get("arch", "")).partition(":")
    model: nn.Module
    if scheme in _LIBRARIES:
        bare = _LIBRARIES[scheme](rest, False, n_classes)
        model = Normalized(
            bare.model, mean or bare.mean.flatten().tolist(), std or bare.std.flatten().tolist()
        )
        # Saved from the network itself, or from the `Normalized` around it.
        inside = not all(name.startswith("model.") for name in state)
        load_state(bare.model if inside else model, state, source=path.name)
        return model
    if scheme == "keras_resnet50":
        from sicl.models.imagenet import KerasResNet50

        model = KerasResNet50()
    else:
        config = infer_config(state, metadata, source=path.name, arch=arch)
        model = replace(config, mean=tuple(mean or config.mean), std=tuple(std or config.std)).build()
    load_state(model, state, source=path.name)
    return model


def count_classes(model: nn.Module) -> int | None:
    """Return the number of classes, from the model's attributes or its last linear layer, else None."""
    inner = model.model if isinstance(model, Normalized) else model
    for holder, field in ((inner, "num_classes"), (getattr(inner, "config", None), "num_labels")):
        value = getattr(holder, field, None)
        if isinstance(value, int):
            return value
    layers = [module for module in inner.modules() if isinstance(module, nn.Linear)]
    return layers[-1].out_features if layers else None


def _import_extra(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise OptionError(
            f"'{extra}:NAME' models need the package {module}; install it with `pip install 'sicl[{extra}]'`."
        ) from error
    except (RuntimeError, OSError) as error:  # Compiled for another torch.
        raise OptionError(
            f"The installed {module} does not work with torch {torch.__version__} ({_first_line(error)}); "
            "install matching versions."
        ) from error


def _timm(name: str, pretrained: bool, n_classes: int | None) -> Normalized:
    timm = _import_extra("timm", "timm")
    options = {} if n_classes is None else {"num_classes": n_classes}
    network = _fetch("timm", name, lambda: timm.create_model(name, pretrained=pretrained, **options))
    config = network.pretrained_cfg
    return Normalized(network, config.get("mean", IMAGENET_MEAN), config.get("std", IMAGENET_STD))


def _torchvision(name: str, pretrained: bool, n_classes: int | None) -> Normalized:
    models = _import_extra("torchvision", "torchvision").models
    options = {} if n_classes is None else {"num_classes": n_classes}
    weights = "DEFAULT" if pretrained else None
    network = _fetch("torchvision", name, lambda: models.get_model(name, weights=weights, **options))
    return Normalized(network, IMAGENET_MEAN, IMAGENET_STD)


def _hf(name: str, pretrained: bool, n_classes: int | None) -> Normalized:
    transformers = _import_extra("transformers", "hf")
    if not pretrained:
        raise OptionError(
            "`arch` must not be an 'hf:NAME'; give the folder of the model as 'hf:FOLDER' instead."
        )
    network = _fetch("hf", name, lambda: transformers.AutoModelForImageClassification.from_pretrained(name))
    try:
        processor: Any = transformers.AutoImageProcessor.from_pretrained(name)
    except (OSError, ValueError):
        processor = None  # A model without a processor file: the libraries' neutral default follows.
    half = (0.5, 0.5, 0.5)
    mean, std = getattr(processor, "image_mean", None), getattr(processor, "image_std", None)
    return Normalized(network, mean or half, std or half)


def _fetch(library: str, name: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except SiclError:
        raise
    except Exception as error:  # Each library has its own errors for unknown names and failed downloads.
        raise DataError(
            f"{library} could not make {name!r} ({_first_line(error)}); check the name and the network."
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__


_LIBRARIES: dict[str, Callable[[str, bool, int | None], Normalized]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "hf": _hf,
}
