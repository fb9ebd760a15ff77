"""Weights on disk: safetensors with the configuration inside, or a pickle read without running code."""

from __future__ import annotations

import pickle
import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from sicl.errors import DataError, OptionError, reason, require_between, require_choice, require_path
from sicl.models.cifar import ARCHITECTURES, CIFAR10_MEAN, CIFAR10_STD
from sicl.models.preprocess import Preprocess, require_channels
from sicl.spec import Spec

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

LARGEST_WEIGHT = 1e12
"""No trained network has larger weights; a flipped bit of an exponent makes such."""
LARGEST_WIDTH = 65_536
"""The most channels or classes a network is built with: a damaged file must not ask for all memory."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Spec):
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
        require_between(1, LARGEST_WIDTH, width=self.width, n_classes=self.n_classes)
        object.__setattr__(self, "mean", require_channels(mean=self.mean))
        object.__setattr__(self, "std", require_channels(std=self.std))
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != 3:
                raise OptionError(f"`{name}` must have three values, got {len(values)}.")
        require_between(-1e3, 1e3, **{f"mean[{i}]": value for i, value in enumerate(self.mean)})
        require_between(1e-6, 1e3, **{f"std[{i}]": value for i, value in enumerate(self.std)})

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
    """Return the numbers of a comma-separated metadata field; none where it holds anything else."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        return ()


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
        dtype: floating-point tensors are stored in this type where it holds their values (a variance may be too large
            for float16); None keeps theirs.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    save_file({name: _stored(tensor, dtype) for name, tensor in state.items()}, part, dict(metadata))
    part.replace(path)


def _stored(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    tensor = tensor.detach().to("cpu")
    if dtype is not None and tensor.is_floating_point():
        cast = tensor.to(dtype)
        tensor = cast if torch.equal(cast.isfinite(), tensor.isfinite()) else tensor
    return tensor.contiguous()


def read_checkpoint(path: Path | str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors and the metadata of a checkpoint file.

    Raises:
        DataError: the file is missing, damaged, or holds something else than weights.
    """
    require_path(path=path)
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
    except Exception as error:  # a reader given damaged bytes raises whatever it meets
        raise DataError(
            f"{path.name!r} is not a whole safetensors file ({reason(error)}); fetch it again."
        ) from error


def _read_pickle(path: Path) -> Any:
    try:
        _require_unpacked(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except DataError:
        raise
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{path.name!r} is damaged or holds Python objects besides weights, which are not loaded from a "
            "pickle because that could run code; save its `state_dict()` alone."
        ) from error
    except Exception as error:  # a pickle is a program: a damaged one fails in any way
        raise DataError(
            f"{path.name!r} is not a whole torch checkpoint ({reason(error)}); fetch it again."
        ) from error


def _require_unpacked(path: Path) -> None:
    """Raise `DataError` for a zip that unpacks to more than its size: torch stores weights as they are."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(info.file_size for info in archive.infolist())
        if unpacked > path.stat().st_size:
            raise DataError(
                f"{path.name!r} unpacks to {unpacked:,} bytes, more than its size; it is not read."
            )


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
    if any(name not in state or state[name].ndim < 2 for name in (stem, head)):
        raise DataError(
            f"{source!r} has no tensors {stem!r} and {head!r}, which {found} has; give the right `arch`."
        )
    if tuple(state[stem].shape[-2:]) == (7, 7):
        raise DataError(
            f"{source!r} has a 7x7 stem, so it is an ImageNet network; give `arch` as 'torchvision:{found}'."
        )
    mean = parse_triple(metadata["mean"]) if "mean" in metadata else CIFAR10_MEAN
    std = parse_triple(metadata["std"]) if "std" in metadata else CIFAR10_STD
    try:
        config = ModelConfig(
            arch=found,
            width=state[stem].shape[0] // per_width,
            n_classes=state[head].shape[0],
            mean=mean,
            std=std,
        )
    except OptionError as error:
        raise DataError(f"{source!r} is damaged or of another network: {error}") from error
    # Without memory first: a damaged width must not ask for all of it.
    with torch.device("meta"):
        require_fit(config.build(), state, source=source)
    return config


def _infer_arch(state: Mapping[str, Tensor], source: str) -> str:
    if "patch_embed.proj.weight" in state:
        return "vit_small"
    blocks = {".".join(name.split(".")[:2]) for name in state if name.startswith("layer")}
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
    """Copy `state` into `model`; every tensor must fit (BN batch counters may be absent) and be sound.

    Raises:
        DataError: names or shapes differ, or a value is NaN, infinite or no weight.
    """
    require_fit(model, state, source=source)
    for name, tensor in state.items():
        if not _sound(name, tensor):
            raise DataError(
                f"{source!r} is damaged: {name!r} ({tensor.dtype}) has values that are NaN, infinite or no weight of a "
                "trained network; fetch it again."
            )
    model.load_state_dict(dict(state), strict=False)


def _sound(name: str, tensor: Tensor) -> bool:
    """Say whether a tensor holds weights: dense, real, finite, of a sane size, and a variance not negative."""
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized or tensor.is_complex():
        return False
    if tensor.numel() == 0 or name.endswith("num_batches_tracked"):
        return True
    low, high = (float(value) for value in tensor.detach().float().aminmax())
    # NaN fails every comparison.
    return (
        low >= -LARGEST_WEIGHT and high <= LARGEST_WEIGHT and (low >= 0 or not name.endswith("running_var"))
    )


def require_fit(model: nn.Module, state: Mapping[str, Tensor], *, source: str) -> None:
    """Raise `DataError` unless names and shapes of `state` are the model's (BN batch counters may be absent)."""
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


def _some(names: Sequence[str]) -> str:
    if not names:
        return "none"
    return f"{len(names)} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
