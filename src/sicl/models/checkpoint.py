"""Weights on disk: safetensors with the configuration inside, or a pickle read without running code."""

from __future__ import annotations

import pickle
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from sicl.errors import DataError, require_choice
from sicl.models.cifar import ARCHITECTURES, CIFAR10_MEAN, CIFAR10_STD
from sicl.models.preprocess import Preprocess, require_channels

_NESTS = ("state_dict", "model_state_dict", "model", "net", "network", "weights")
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.")
_FAMILIES = {
    r"stages\.0\.blocks\.0\.conv_dw\.": "timm:convnext_tiny",
    r"features\.1\.0\.layer_scale$": "torchvision:convnext_tiny",
    r"layers\.0\.blocks\.0\.attn\.relative_position_bias_table$": "timm:swin_tiny_patch4_window7_224",
    r"features\.1\.0\.attn\.relative_position_bias_table$": "torchvision:swin_t",
    r"blocks\.0\.mlp_tokens\.": "timm:mixer_b16_224",
    r"dist_token$": "timm:deit_tiny_distilled_patch16_224",
    r"blocks\.0\.attn\.qkv\.": "timm:vit_tiny_patch16_224",
    r"conv_stem\.": "timm:efficientnet_b0",
    r"features\.denseblock1\.": "timm:densenet121",
    r"(s1|trunk_output\.block1)\.": "timm:regnety_004",
    r"stages\.0\.blocks\.0\.token_mixer\.": "timm:poolformer_s12",
    r"vit\.embeddings\.": "hf:FOLDER",
    r"encoder\.layers\.encoder_layer_0\.": "torchvision:vit_b_16",
    r"features\.0\.0\.weight$": "torchvision:mobilenet_v2",
    r"features\.0\.weight$": "torchvision:vgg16",
}
"""Names that tell a library's family, and an example of the `arch` to give; the first that is found counts."""
_DEPTHS = {(2, 2, 2, 2): "resnet18", (3, 4, 6, 3): "resnet50", (3, 4, 23, 3): "resnet101"}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """What it takes to build one of the package's own networks.

    Args:
        arch: a name in `ARCHITECTURES`.
        width: channels of the first stage (ResNet) or of a head (ViT).
        n_classes: size of the output.
        mean: per-channel mean the network takes from the images.
        std: per-channel standard deviation it divides them by.
    """

    arch: str
    width: int = 64
    n_classes: int = 10
    mean: tuple[float, ...] = CIFAR10_MEAN
    std: tuple[float, ...] = CIFAR10_STD

    def __post_init__(self) -> None:
        require_choice(ARCHITECTURES, arch=self.arch)
        object.__setattr__(self, "mean", require_channels(mean=self.mean))
        object.__setattr__(self, "std", require_channels(std=self.std))

    @property
    def preprocess(self) -> Preprocess:
        """How pictures are made for it: 32 pixels, the size of CIFAR's images."""
        return Preprocess(size=32, mean=self.mean, std=self.std)

    def build(self) -> nn.Module:
        """Return the network with fresh weights."""
        return ARCHITECTURES[self.arch](
            width=self.width, n_classes=self.n_classes, mean=self.mean, std=self.std
        )

    def to_metadata(self) -> dict[str, str]:
        """Return the configuration as the strings that a safetensors header holds."""
        return {
            "arch": self.arch,
            "width": str(self.width),
            "n_classes": str(self.n_classes),
            "mean": _join(self.mean),
            "std": _join(self.std),
            "preprocess": self.preprocess.to_json(),
        }


def _join(values: Sequence[float]) -> str:
    return ",".join(f"{value:g}" for value in values)


def parse_triple(text: str) -> tuple[float, ...]:
    """Return the numbers of a comma-separated metadata field."""
    return tuple(float(part) for part in text.split(","))


def save_checkpoint(
    path: Path | str,
    state: Mapping[str, Tensor],
    metadata: Mapping[str, str],
    *,
    dtype: torch.dtype | None = None,
) -> None:
    """Write tensors and metadata as safetensors, aside first and then renamed: never a half file.

    Args:
        path: the file to write; its folder is made.
        state: a state dict.
        metadata: strings for the header, `ModelConfig.to_metadata()` among them.
        dtype: floating-point tensors are stored in this type; None keeps theirs.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    save_file({name: _stored(tensor, dtype) for name, tensor in state.items()}, part, dict(metadata))
    part.replace(path)


def _stored(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    tensor = tensor.detach().to("cpu")
    if dtype is not None and tensor.is_floating_point():
        tensor = tensor.to(dtype)
    return tensor.contiguous()


def read_checkpoint(path: Path | str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a checkpoint file.

    Raises:
        DataError: the file is missing, damaged, or holds something else than weights.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"There is no checkpoint file {str(path)!r}; check the path.")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    if path.suffix in {".pt", ".pth", ".ckpt", ".tar", ".bin"}:
        return clean_state(_read_pickle(path), path), {}
    raise DataError(f"{path.name!r} must end in .safetensors, .pt or .pth to be read as a checkpoint.")


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"{path.name!r} is not a whole safetensors file ({error}); fetch it again."
        ) from error


def _read_pickle(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{path.name!r} is damaged or holds Python objects besides weights, which are not loaded from a "
            "pickle because that could run code; save its `state_dict()` alone."
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{path.name!r} is not a whole torch checkpoint ({reason}); fetch it again."
        ) from error


def clean_state(loaded: Any, path: Path) -> dict[str, Tensor]:
    """Return the state dict inside a loaded object: unnested, and without wrappers' prefixes."""
    while isinstance(loaded, Mapping) and not any(isinstance(value, Tensor) for value in loaded.values()):
        inner = next((loaded[key] for key in _NESTS if isinstance(loaded.get(key), Mapping)), None)
        if inner is None:
            break
        loaded = inner
    if not isinstance(loaded, Mapping):
        raise DataError(
            f"{path.name!r} holds a {type(loaded).__name__}, not a state dict; save `state_dict()`."
        )
    state = {str(name): value for name, value in loaded.items() if isinstance(value, Tensor)}
    if not state:
        raise DataError(f"{path.name!r} holds no tensors; save the model's `state_dict()`.")
    while prefix := next((p for p in _PREFIXES if all(name.startswith(p) for name in state)), None):
        state = {name.removeprefix(prefix): value for name, value in state.items()}
    return state


def infer_config(
    state: Mapping[str, Tensor], metadata: Mapping[str, str], *, source: str, arch: str | None = None
) -> ModelConfig:
    """Return the configuration that fits the tensors; metadata and `arch` win where they speak.

    Raises:
        DataError: the tensors are of no network this package builds.
    """
    found = re.sub(r"-w\d+$", "", arch or metadata.get("arch", "")) or _infer_arch(state, source)
    stem, head, per_width = (
        ("patch_embed.proj.weight", "head.weight", 6)
        if found.startswith("vit")
        else ("conv1.weight", "fc.weight", 1)
    )
    if stem not in state or head not in state:
        raise DataError(
            f"{source!r} has no tensors {stem!r} and {head!r}, which {found} has; give the right `arch`."
        )
    if tuple(state[stem].shape[-2:]) == (7, 7):
        raise DataError(
            f"{source!r} has a 7x7 stem, so it is an ImageNet network; give `arch` as 'torchvision:{found}'."
        )
    mean = parse_triple(metadata["mean"]) if "mean" in metadata else CIFAR10_MEAN
    std = parse_triple(metadata["std"]) if "std" in metadata else CIFAR10_STD
    return ModelConfig(
        arch=found,
        width=state[stem].shape[0] // per_width,
        n_classes=state[head].shape[0],
        mean=mean,
        std=std,
    )


def _infer_arch(state: Mapping[str, Tensor], source: str) -> str:
    if "patch_embed.proj.weight" in state:
        return "vit_small"
    blocks = {name.split(".")[0] + "." + name.split(".")[1] for name in state if name.startswith("layer")}
    depths = tuple(sum(block.startswith(f"layer{stage}.") for block in blocks) for stage in (1, 2, 3, 4))
    if depths in _DEPTHS:
        batch_norm = any(name.endswith("running_mean") for name in state)
        return _DEPTHS[depths] if batch_norm else f"{_DEPTHS[depths]}_gn"
    for pattern, example in _FAMILIES.items():
        if any(re.match(pattern, name) for name in state):
            raise DataError(
                f"The names in {source!r} are those of another library's network; give `arch`, as "
                f"arch={example!r} with the model's own name."
            )
    raise DataError(
        f"The architecture of {source!r} is not clear from its tensors; give `arch`, one of "
        f"{', '.join(ARCHITECTURES)}, or a name such as 'timm:resnet50'."
    )


def load_state(model: nn.Module, state: Mapping[str, Tensor], *, source: str) -> None:
    """Copy `state` into `model`; every tensor must fit (BN batch counters may be absent).

    Raises:
        DataError: names or shapes differ.
    """
    own = model.state_dict()
    missing = [name for name in own if name not in state and not name.endswith("num_batches_tracked")]
    unexpected = [name for name in state if name not in own]
    if missing or unexpected:
        raise DataError(
            f"{source!r} does not fit {type(model).__name__}: {_some(missing)} missing, {_some(unexpected)} "
            "unexpected; give the right `arch`."
        )
    for name, tensor in state.items():
        if tensor.shape != own[name].shape:
            raise DataError(
                f"{source!r} has {name!r} of shape {tuple(tensor.shape)}, {type(model).__name__} needs "
                f"{tuple(own[name].shape)}; give the right `arch` and `n_classes`."
            )
    model.load_state_dict(dict(state), strict=False)


def _some(names: Sequence[str]) -> str:
    if not names:
        return "none"
    return f"{len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
