"""Trained classifiers by name: the embedded one, checkpoint files, and those of timm, torchvision and HF."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from sicl.errors import DataError, OptionError, nearest, require_path
from sicl.models.checkpoint import infer_config, load_state, parse_triple, read_checkpoint
from sicl.models.efficientnet import DEPTHS, EfficientNetLite, find_lite, timm_names
from sicl.models.libraries import LIBRARIES
from sicl.models.outputs import ReversedChannels
from sicl.models.preprocess import Normalized as Normalized
from sicl.models.preprocess import Preprocess, require_channels
from sicl.models.vit import vit_of

DEMO_WEIGHTS = Path(__file__).parent / "_embedded" / "resnet18_w16_cifar10.safetensors"
"""The weights of `load_model("demo")`: a 16-wide ResNet-18 for CIFAR-10, in half precision."""
Normalisation = tuple[tuple[float, ...] | None, tuple[float, ...] | None]
"""The mean and the standard deviation that the caller gave, or None."""
_HALF = (0.5, 0.5, 0.5)
_BGR_MEAN = (123.68 / 255, 116.779 / 255, 103.939 / 255)


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

    Its `preprocess` makes such images of pictures, as the model's own configuration says.

    Args:
        name_or_path: "demo" (a small CIFAR-10 ResNet-18 inside the package), the path of a .safetensors, .pt
            or .pth checkpoint, "timm:NAME", "torchvision:NAME", "hf:NAME" (with the extra of that name),
            or "imagenet-resnet50:PATH" (a ResNet-50 in the Keras layout, exported to tfjs).
        arch: for a checkpoint, its architecture ("resnet18", "resnet18_gn", "resnet50", "resnet101",
            "vit_small", "vit" (any plain ViT), "efficientnet_lite0", "efficientnet_lite1", or "timm:NAME",
            "torchvision:NAME"); None reads it from the file.
        n_classes: the number of classes the model must have; None accepts any.
        mean: normalisation; None takes the model's own (a file that states none: CIFAR-10's for the CIFAR
            networks, 0.5 for a plain ViT and EfficientNet-Lite).
        std: as `mean`.
        device: where the model goes.

    Raises:
        DataError: the file is missing, damaged or does not fit the architecture.
        OptionError: the name is unknown, the extra is not installed, or the number of classes differs.
    """
    if not isinstance(name_or_path, str | Path):
        raise OptionError(
            f"`name_or_path` must be a name or a file, got a {type(name_or_path).__name__}; a model that is already "
            "in memory needs no loading: attach to it, or to `sicl.Normalized(model, mean, std)`."
        )
    given = (
        None if mean is None else require_channels(mean=mean),
        None if std is None else require_channels(std=std),
    )
    target = require_device(device)
    name = str(name_or_path)
    scheme, _, rest = name.partition(":")
    if name == "demo":
        model = _from_checkpoint(DEMO_WEIGHTS, None, None, given)
    elif rest and scheme in LIBRARIES:
        model = _from_library(scheme, rest, None, given, pretrained=True)
    elif rest and scheme == "imagenet-resnet50":
        from sicl.models.imagenet import load_keras_resnet50

        model = with_preprocess(load_keras_resnet50(rest), keras_preprocess())
    else:
        _require_path(name)
        model = _from_checkpoint(Path(name), arch, n_classes, given)
    found = count_classes(model)
    if n_classes is not None and found != n_classes:
        raise OptionError(
            f"`n_classes` must be {found} for {name!r}, got {n_classes}; leave it out or retrain."
        )
    return model.eval().to(target)


def require_device(device: torch.device | str) -> torch.device:
    """Return the device, or say which there are."""
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise OptionError(f"`device` must be 'cpu', 'cuda', 'cuda:0' or 'mps', got {device!r}.") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise OptionError(f"`device` is {str(device)!r}, but torch finds no CUDA GPU here; use 'cpu'.")
    return found


def with_preprocess(model: nn.Module, preprocess: Preprocess) -> nn.Module:
    """Return the model itself, now with its `preprocess`."""
    # Past nn.Module's own setter, which is for parameters, buffers and modules.
    object.__setattr__(model, "preprocess", preprocess)
    return model


def keras_preprocess() -> Preprocess:
    """Return what Keras's ResNet-50 was trained on; the network itself makes BGR of 0 to 255."""
    return Preprocess(size=224, resize=256, mean=_BGR_MEAN, std=(1 / 255,) * 3)


def _require_path(name: str) -> None:
    require_path(name_or_path=name)
    if Path(name).suffix or Path(name).exists():
        return
    known = ["demo", *(f"{library}:NAME" for library in LIBRARIES), "imagenet-resnet50:PATH"]
    raise OptionError(
        f"`name_or_path` must be a checkpoint file or one of {', '.join(known)}; got {name!r}."
        f"{nearest(name, known)}"
    )


def _from_library(
    library: str, name: str, n_classes: int | None, given: Normalisation, *, pretrained: bool
) -> Normalized:
    network, stated = LIBRARIES[library](name, pretrained, n_classes)
    if stated is None:
        mean, std = given
        if mean is None or std is None:
            raise DataError(
                f"'{library}:{name}' does not say how its images are normalised; give `mean` and `std`."
            )
        return Normalized(network, mean, std)
    preprocess = stated.normalised_by(*given)
    return Normalized(network, preprocess.mean, preprocess.std, preprocess)


def _from_checkpoint(path: Path, arch: str | None, n_classes: int | None, given: Normalisation) -> nn.Module:
    state, metadata = read_checkpoint(path)
    stated = arch or metadata.get("arch", "")
    scheme, _, rest = stated.partition(":")
    if scheme in LIBRARIES:
        wrapped = _from_library(scheme, rest, n_classes, given, pretrained=False)
        # Saved from the network itself, or from the `Normalized` around it.
        inside = not all(name.startswith("model.") for name in state)
        load_state(wrapped.model if inside else wrapped, state, source=path.name)
        return wrapped
    if not stated and find_lite(state):
        stated = str(find_lite(state))
    model, preprocess = _untrained(stated, state, metadata, path.name, given)
    if isinstance(model, EfficientNetLite):
        state = dict(timm_names(state, model))
    load_state(model, state, source=path.name)
    if "preprocess" in metadata:
        preprocess = Preprocess.from_json(metadata["preprocess"], source=path.name).normalised_by(*given)
    return with_preprocess(model, preprocess)


def _untrained(
    arch: str,
    state: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    source: str,
    given: Normalisation,
) -> tuple[nn.Module, Preprocess]:
    """Return the package's network that the tensors are of, and the preprocessing if the file states none."""
    halves = tuple(
        value or (parse_triple(metadata[name]) if name in metadata else _HALF)
        for name, value in zip(("mean", "std"), given)
    )
    if arch == "keras_resnet50":
        from sicl.models.imagenet import KerasResNet50

        return KerasResNet50(), keras_preprocess()
    if arch in DEPTHS:
        bias = state.get("classifier.bias", state.get("_fc.bias"))
        n_classes = 1000 if bias is None else bias.shape[0]
        size, resize = (240, 272) if arch == "efficientnet_lite1" else (224, 256)
        preprocess = _photo(size, resize, *halves)
        network = EfficientNetLite(DEPTHS[arch], n_classes=n_classes, mean=halves[0], std=halves[1])
        return network, preprocess
    patches = state.get("patch_embed.proj.weight")
    if (arch.startswith("vit") or not arch) and patches is not None and patches.shape[-1] != 4:
        made = _vit(state, metadata, *halves)
        if made is not None:
            return made
    config = infer_config(state, metadata, source=source, arch=arch or None)
    config = replace(config, mean=given[0] or config.mean, std=given[1] or config.std)
    return config.build(), config.preprocess


def _photo(size: int, resize: int, mean: tuple[float, ...], std: tuple[float, ...]) -> Preprocess:
    return Preprocess(size=size, resize=resize, interpolation="bicubic", mean=mean, std=std)


def _vit(
    state: Mapping[str, Tensor], metadata: Mapping[str, str], mean: tuple[float, ...], std: tuple[float, ...]
) -> tuple[nn.Module, Preprocess] | None:
    """A plain ViT: 224 pixels of a photo, or fewer, to which smaller images are enlarged inside the network."""
    model = vit_of(state, mean=mean, std=std)
    if model is None:
        return None
    size = model.image_size
    model.enlarge = metadata.get("enlarge", str(size < 224)).lower() == "true"
    resize = size if model.enlarge else int(size / 0.9)
    return model, _photo(size, resize, mean, std)


def count_classes(model: nn.Module) -> int | None:
    """Return the number of classes, from the model's attributes or its last linear layer, else None."""
    inner = model
    while isinstance(inner, Normalized | ReversedChannels):
        inner = inner.model
    for holder, field in ((inner, "num_classes"), (getattr(inner, "config", None), "num_labels")):
        value = getattr(holder, field, None)
        if isinstance(value, int):
            return value
    layers = [module for module in inner.modules() if isinstance(module, nn.Linear)]
    return layers[-1].out_features if layers else None
