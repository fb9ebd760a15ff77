"""An ImageNet ResNet-50 in the Keras layout, read from a tfjs export (`model.json` and weight shards)."""

from __future__ import annotations

import json
import math
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sicl.errors import DataError, reason
from sicl.models.checkpoint import load_state, save_checkpoint
from sicl.models.cifar import Bottleneck
from sicl.models.preprocess import FromPixels, normalised

_STAGES = (("2", "abc"), ("3", "abcd"), ("4", "abcdef"), ("5", "abc"))
_BN = {"gamma": "weight", "beta": "bias", "moving_mean": "running_mean", "moving_variance": "running_var"}
_BGR_MEAN = (103.939, 116.779, 123.68)
_EPS = 1e-3


class KerasBottleneck(Bottleneck):
    """1x1 (with the stride), 3x3, 1x1 convolutions with biases, and a skip connection: the "v1" block."""

    def __init__(self, n_in: int, n_mid: int, stride: int, project: bool) -> None:
        # Other layers in the same places: what they do one after the other is inherited.
        nn.Module.__init__(self)
        n_out = 4 * n_mid
        self.conv1 = nn.Conv2d(n_in, n_mid, 1, stride)
        self.bn1 = nn.BatchNorm2d(n_mid, eps=_EPS)
        self.conv2 = nn.Conv2d(n_mid, n_mid, 3, 1, 1)
        self.bn2 = nn.BatchNorm2d(n_mid, eps=_EPS)
        self.conv3 = nn.Conv2d(n_mid, n_out, 1)
        self.bn3 = nn.BatchNorm2d(n_out, eps=_EPS)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if project:
            self.downsample = nn.Sequential(
                nn.Conv2d(n_in, n_out, 1, stride), nn.BatchNorm2d(n_out, eps=_EPS)
            )


class KerasResNet50(FromPixels):
    """ResNet-50 as Keras first shipped it; takes RGB images in [0, 1] and makes its own BGR 0-255 of them.

    Stages and head have torchvision's names: `conv1`, `bn1`, `layer1` to `layer4`, `fc`.
    """

    def __init__(self, n_classes: int = 1000) -> None:
        super().__init__(_BGR_MEAN, (1.0, 1.0, 1.0))
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3)
        self.bn1 = nn.BatchNorm2d(64, eps=_EPS)
        self.relu = nn.ReLU(inplace=True)
        # Keras pads with zeros, torch with -inf: the same after a ReLU.
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = _stage(64, 64, 3, 1)
        self.layer2 = _stage(256, 128, 4, 2)
        self.layer3 = _stage(512, 256, 6, 2)
        self.layer4 = _stage(1024, 512, 3, 2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2048, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        out = self.conv1(normalised(images * 255.0, self.mean.flip(1), self.std).flip(1))
        out = self.maxpool(self.relu(self.bn1(out)))
        out = self.layer4(self.layer3(self.layer2(self.layer1(out))))
        logits: Tensor = self.fc(torch.flatten(self.avgpool(out), 1))
        return logits


def _stage(n_in: int, n_mid: int, depth: int, stride: int) -> nn.Sequential:
    blocks = [KerasBottleneck(n_in, n_mid, stride, project=True)]
    blocks += [KerasBottleneck(4 * n_mid, n_mid, 1, project=False) for _ in range(depth - 1)]
    return nn.Sequential(*blocks)


def load_keras_resnet50(path: Path | str) -> KerasResNet50:
    """Return the ResNet-50 of a tfjs export, in eval mode.

    Args:
        path: a folder that holds `model.json` and its shards (at any depth), or a .tgz of one.

    Raises:
        DataError: the export is missing, damaged, or of another network.
    """
    path = Path(path)
    read = _reader(path)
    try:
        manifest = json.loads(read("model.json"))["weightsManifest"]
        weights = _read_weights(manifest, read)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise DataError(
            f"{path.name!r} holds no readable tfjs `model.json` ({reason(error)}); unpack it again."
        ) from error
    model = KerasResNet50()
    load_state(model, _rename(weights, path), source=path.name)
    return model.eval()


def convert_keras_resnet50(path: Path | str, target: Path | str, *, dtype: torch.dtype | None = None) -> None:
    """Write a tfjs export as a safetensors checkpoint that `load_model` reads.

    Args:
        path: as for `load_keras_resnet50`.
        target: the .safetensors file to write.
        dtype: the stored type; None keeps float32.
    """
    model = load_keras_resnet50(path)
    metadata = {"arch": "keras_resnet50", "n_classes": str(model.fc.out_features), "dataset": "imagenet"}
    save_checkpoint(target, model.state_dict(), metadata, dtype=dtype)


def _reader(path: Path) -> Callable[[str], bytes]:
    """Return a function from a file's name to its bytes, in a folder or an archive."""
    if path.is_dir():
        found = sorted(path.rglob("model.json"))
        if not found:
            raise DataError(
                f"The folder {str(path)!r} has no `model.json`; give the folder of the tfjs export."
            )
        return lambda name: _read_file(found[0].parent / str(name).lstrip("/"))
    if not path.is_file():
        raise DataError(f"There is no tfjs export {str(path)!r}; give its folder or .tgz.")
    try:
        with tarfile.open(path) as archive:
            members = {m.name: archive.extractfile(m) for m in archive.getmembers() if m.isfile()}
            contents = {Path(name).name: file.read() for name, file in members.items() if file is not None}
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(
            f"{path.name!r} is not a whole .tgz archive ({reason(error)}); fetch it again."
        ) from error
    return lambda name: _member(contents, name, path)


def _read_file(path: Path) -> bytes:
    if ".." in path.parts or not path.is_file():
        raise DataError(f"The tfjs export lacks {path.name!r} in {str(path.parent)!r}; unpack it again.")
    return path.read_bytes()


def _member(contents: Mapping[str, bytes], name: str, path: Path) -> bytes:
    if name not in contents:
        raise DataError(f"The archive {path.name!r} lacks {name!r}; fetch it again.")
    return contents[name]


def _read_weights(
    manifest: list[dict[str, Any]], read: Callable[[str], bytes]
) -> dict[str, NDArray[np.float32]]:
    weights = {}
    for group in manifest:
        data = b"".join(read(name) for name in group["paths"])
        offset = 0
        for entry in group["weights"]:
            if entry["dtype"] != "float32" or "quantization" in entry:
                raise DataError(f"The tfjs weight {entry['name']!r} must be float32, got {entry['dtype']}.")
            count = math.prod(entry["shape"])
            if count < 0 or offset + 4 * count > len(data):
                raise DataError(f"The tfjs shards end before {entry['name']!r}; fetch the export again.")
            values = np.frombuffer(data, dtype="<f4", count=count, offset=offset)
            weights[entry["name"]] = values.reshape(entry["shape"])
            offset += 4 * count
    return weights


def _rename(weights: Mapping[str, NDArray[np.float32]], path: Path) -> dict[str, Tensor]:
    layers = _layer_names()
    state = {}
    for full, values in weights.items():
        layer, _, field = full.partition("/")
        if layer not in layers:
            raise DataError(f"{path.name!r} has the layer {layer!r}, which Keras's ResNet-50 has not.")
        tensor = torch.from_numpy(values.copy())
        if field == "kernel":
            # tfjs: height, width, in, out; dense: in, out.
            tensor = tensor.permute(3, 2, 0, 1) if tensor.ndim == 4 else tensor.T
        name = _BN.get(field, field) if "bn" in layer else {"kernel": "weight"}.get(field, field)
        state[f"{layers[layer]}.{name}"] = tensor.contiguous()
    return state


def _layer_names() -> dict[str, str]:
    """Return Keras's layer names and the module each becomes."""
    names = {"conv1": "conv1", "bn_conv1": "bn1", "fc1000": "fc"}
    for index, (stage, letters) in enumerate(_STAGES, start=1):
        for position, letter in enumerate(letters):
            ours = f"layer{index}.{position}"
            for number, branch in enumerate(("2a", "2b", "2c"), start=1):
                names[f"res{stage}{letter}_branch{branch}"] = f"{ours}.conv{number}"
                names[f"bn{stage}{letter}_branch{branch}"] = f"{ours}.bn{number}"
        names[f"res{stage}a_branch1"] = f"layer{index}.0.downsample.0"
        names[f"bn{stage}a_branch1"] = f"layer{index}.0.downsample.1"
    return names
