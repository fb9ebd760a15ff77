"""Classifiers of timm, torchvision and Hugging Face, each with the preprocessing its own configuration states."""

from __future__ import annotations

import importlib
import math
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from PIL import Image
from torch import Tensor, nn

from sicl.errors import DataError, OptionError, SiclError
from sicl.models.outputs import ReversedChannels
from sicl.models.preprocess import Preprocess, require_agreement

Found = tuple[nn.Module, Preprocess | None]
"""A network that expects normalised images, and how its pictures are made."""
_PATIENCE = 3.0
_WHOLE = 384
"""ConvNeXt's processor crops pictures for networks of fewer pixels than this, and squashes them for others."""


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


def load_timm(name: str, pretrained: bool, n_classes: int | None) -> Found:
    """Return a network of timm; sizes and normalisation are those of its pretrained configuration."""
    timm = _import_extra("timm", "timm")
    options = {} if n_classes is None else {"num_classes": n_classes}
    with _failures_in_words("timm", name):
        if pretrained:
            _require_weights_within_reach(timm, name)
        network = timm.create_model(name, pretrained=pretrained, **options)
    stated = timm.data.resolve_data_config({}, model=network)
    channels, height, width = stated["input_size"]
    if height != width or channels != 3:
        raise OptionError(
            f"'timm:{name}' takes {channels} x {height} x {width} images; only square RGB is read."
        )
    preprocess = Preprocess(
        size=height,
        resize=math.floor(height / stated["crop_pct"]),
        interpolation=_known(stated["interpolation"]),
        fit="squash" if stated.get("crop_mode") == "squash" else "crop",
        mean=stated["mean"],
        std=stated["std"],
    )
    require_agreement(preprocess, timm.data.create_transform(**stated), f"timm:{name}")
    return network, preprocess


def _require_weights_within_reach(timm: Any, name: str) -> None:
    """Say at once that weights are neither in the cache nor to be had; the hub's client would retry for a minute."""
    hub = getattr(timm.get_pretrained_cfg(name), "hf_hub_id", None)
    if hub is not None and not _cached_or_reachable(hub, ("model.safetensors", "pytorch_model.bin")):
        raise DataError(
            f"The weights of 'timm:{name}' are not in the cache and the hub cannot be reached; fetch {hub!r} on a "
            f"machine with a network and give its file: `load_model('model.safetensors', arch='timm:{name}')`."
        )


def _cached_or_reachable(repository: str, files: tuple[str, ...]) -> bool:
    hub = importlib.import_module("huggingface_hub")
    if any(isinstance(hub.try_to_load_from_cache(repository, file), str) for file in files):
        return True
    return not hub.constants.HF_HUB_OFFLINE and _reachable(hub.constants.ENDPOINT)


def _reachable(url: str) -> bool:
    parts = urlsplit(url)
    if any(os.environ.get(key) for key in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")):
        return True  # Only the proxy knows.
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 443), _PATIENCE):
            return True
    except OSError:
        return False


def load_torchvision(name: str, pretrained: bool, n_classes: int | None) -> Found:
    """Return a network of torchvision; sizes and normalisation are those of its default weights' transforms."""
    models = _import_extra("torchvision", "torchvision").models
    options = {} if n_classes is None else {"num_classes": n_classes}
    with _failures_in_words("torchvision", name):
        weights = models.get_model_weights(name).DEFAULT
        network = models.get_model(name, weights=weights if pretrained else None, **options)
        stated = weights.transforms()
    size, resize = (next(iter(value)) for value in (stated.crop_size, stated.resize_size))
    preprocess = Preprocess(
        size=size,
        resize=max(size, resize),
        interpolation=_known(stated.interpolation.value),
        mean=tuple(stated.mean),
        std=tuple(stated.std),
    )
    require_agreement(preprocess, stated, f"torchvision:{name}")
    return network, preprocess


def load_hf(name: str, pretrained: bool, n_classes: int | None) -> Found:
    """Return an image classifier of transformers; sizes and normalisation are those of its image processor."""
    transformers = _import_extra("transformers", "hf")
    if not pretrained:
        raise OptionError(
            "`arch` must not be an 'hf:NAME'; give the folder of the model as 'hf:FOLDER' instead."
        )
    with _failures_in_words("hf", name):
        if not Path(name).is_dir() and not _cached_or_reachable(name, ("config.json",)):
            raise DataError(
                f"'hf:{name}' is not in the cache and the hub cannot be reached; give the folder of a saved copy "
                "as 'hf:FOLDER'."
            )
        network: nn.Module = transformers.AutoModelForImageClassification.from_pretrained(name)
    try:
        processor: Any = transformers.AutoImageProcessor.from_pretrained(name)
    except ImportError as error:
        raise OptionError(
            f"The image processor of 'hf:{name}' cannot run here: {_first_line(error)}."
        ) from error
    except (OSError, ValueError):  # The model came without one.
        return network, None
    preprocess, reversed_channels = _read_processor(processor, f"hf:{name}")
    return (ReversedChannels(network) if reversed_channels else network), preprocess


def _read_processor(processor: Any, name: str) -> tuple[Preprocess, bool]:
    """Return what an image processor does to pictures, and whether it gives their channels as BGR.

    Raises:
        DataError: it does something that a `Preprocess` cannot say.
    """
    size, crop = _sides(processor, "size"), _sides(processor, "crop_size")
    crop = crop if _yes(processor, "do_center_crop") else {}
    edge, share = size.get("shortest_edge"), getattr(processor, "crop_pct", None)
    side = crop.get("height") or size.get("height") or edge
    if side is None:
        raise DataError(f"The image processor of '{name}' states no size; build the model with `Normalized`.")
    resize = edge or size.get("height") or side
    squash = not edge
    if share and crop:  # PoolFormer's: the crop is a share of what it is cut from.
        resize, squash = int(resize / share), False
    elif share and edge:
        resize, squash = (edge, True) if edge >= _WHOLE else (int(edge / share), False)
    resample = getattr(processor, "resample", None)
    preprocess = Preprocess(
        size=side,
        resize=max(side, resize),
        interpolation=Image.Resampling(2 if resample is None else int(resample)).name.lower(),
        fit="squash" if squash else "crop",
        corner="down",
        **_normalisation(processor),
    )
    backwards = _yes(processor, "do_flip_channel_order")

    def prepared(picture: Image.Image) -> Tensor:
        made: Tensor = processor(picture, return_tensors="pt")["pixel_values"][0]
        return made.flip(0) if backwards else made

    require_agreement(preprocess, prepared, name)
    return preprocess, backwards


def _sides(processor: Any, field: str) -> Mapping[str, int]:
    value = getattr(processor, field, None)
    if value is None:
        return {}
    return {"height": value, "width": value} if isinstance(value, int) else dict(value)


def _normalisation(processor: Any) -> dict[str, tuple[float, ...]]:
    if not _yes(processor, "do_normalize"):
        return {}
    # EfficientNet's divides a second time.
    power = 2 if _yes(processor, "include_top") else 1
    return {
        "mean": tuple(processor.image_mean),
        "std": tuple(value**power for value in processor.image_std),
    }


def _yes(processor: Any, flag: str) -> bool:
    return bool(getattr(processor, flag, False))


def _known(interpolation: str) -> str:
    return "bilinear" if interpolation == "random" else interpolation


@contextmanager
def _failures_in_words(library: str, name: str) -> Iterator[None]:
    try:
        yield
    except SiclError:
        raise
    except Exception as error:  # Each library has its own errors for unknown names and failed downloads.
        raise DataError(
            f"{library} could not make {name!r} ({_first_line(error)}); check the name and the network, or give a "
            f"local file: `load_model(FILE, arch='{library}:{name}')`."
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__


LIBRARIES: dict[str, Callable[[str, bool, int | None], Found]] = {
    "timm": load_timm,
    "torchvision": load_torchvision,
    "hf": load_hf,
}
"""Loaders by the word before the colon: (name, pretrained, number of classes)."""
