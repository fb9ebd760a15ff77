"""The Keras ResNet-50: reading a tfjs export, and its forward pass."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from sicl.errors import DataError
from sicl.models.imagenet import KerasResNet50, convert_keras_resnet50, load_keras_resnet50
from sicl.models.zoo import load_model

IMAGES = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))


def _keras_name(ours: str) -> str:
    """The name Keras gives a tensor, written down independently of the loader."""
    parts = ours.split(".")
    field = parts[-1]
    is_norm = "bn" in parts[-2] or (parts[-2] == "1" and "downsample" in parts)
    fields = {
        "weight": "gamma",
        "bias": "beta",
        "running_mean": "moving_mean",
        "running_var": "moving_variance",
    }
    field = fields[field] if is_norm else {"weight": "kernel"}.get(field, field)
    if len(parts) == 2:
        return {"conv1": "conv1", "bn1": "bn_conv1", "fc": "fc1000"}[parts[0]] + "/" + field
    stage, block = int(parts[0][-1]) + 1, "abcdef"[int(parts[1])]
    branch = "1" if parts[2] == "downsample" else "2" + "abc"[int(parts[2][-1]) - 1]
    return f"{'bn' if is_norm else 'res'}{stage}{block}_branch{branch}/{field}"


def _export(model: KerasResNet50, folder: Path) -> None:
    """Write `model` as tfjs would: one group, kernels as H x W x in x out, bytes cut into shards anywhere."""
    folder.mkdir(parents=True)
    entries, chunks = [], []
    for name, tensor in model.state_dict().items():
        if "num_batches" in name:
            continue
        values = tensor.permute(2, 3, 1, 0) if tensor.ndim == 4 else tensor.T if tensor.ndim == 2 else tensor
        array = np.ascontiguousarray(values.numpy(), dtype="<f4")
        entries.append({"name": _keras_name(name), "shape": list(array.shape), "dtype": "float32"})
        chunks.append(array.tobytes())
    data = b"".join(chunks)
    cut = len(data) // 2 + 3
    paths = ["shard1.bin", "shard2.bin"]
    (folder / paths[0]).write_bytes(data[:cut])
    (folder / paths[1]).write_bytes(data[cut:])
    manifest = {"weightsManifest": [{"paths": paths, "weights": entries}]}
    (folder / "model.json").write_text(json.dumps(manifest))


@pytest.fixture(scope="module")
def model() -> KerasResNet50:
    torch.manual_seed(0)
    model = KerasResNet50().eval()
    for name, tensor in model.state_dict().items():
        if tensor.ndim == 1 and tensor.is_floating_point():
            # No two vectors alike, so that a swapped pair shows.
            tensor.uniform_(0.5, 1.5) if "var" in name else tensor.add_(0.2 * torch.rand_like(tensor))
    return model


@pytest.fixture(scope="module")
def export(model: KerasResNet50, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tfjs") / "ResNet50"
    _export(model, folder)
    return folder


def test_an_export_reads_back_to_the_same_network(model: KerasResNet50, export: Path) -> None:
    """All 320 tensors find their place and orientation."""
    loaded = load_keras_resnet50(export.parent)
    assert torch.equal(loaded(IMAGES), model(IMAGES))
    assert load_model(f"imagenet-resnet50:{export}", n_classes=1000).training is False


def test_conversion_makes_a_checkpoint_that_load_model_reads(
    model: KerasResNet50, export: Path, tmp_path: Path
) -> None:
    """The safetensors file names its own architecture."""
    convert_keras_resnet50(export, tmp_path / "r50.safetensors")
    assert torch.equal(load_model(tmp_path / "r50.safetensors")(IMAGES), model(IMAGES))


def test_the_input_becomes_bgr_and_the_stride_is_on_the_first_convolution(model: KerasResNet50) -> None:
    """The stem sees 255 * BGR minus Keras's means; a block's 1x1 convolution halves the resolution."""
    seen = {}
    handle = model.bn1.register_forward_pre_hook(lambda _, inputs: seen.update(stem=inputs[0]))
    model(IMAGES)
    handle.remove()
    blue_first = torch.stack([IMAGES[:, 2], IMAGES[:, 1], IMAGES[:, 0]], 1) * 255
    shifted = F.pad(blue_first - torch.tensor([103.939, 116.779, 123.68]).view(3, 1, 1), (3, 3, 3, 3))
    torch.testing.assert_close(
        seen["stem"], F.conv2d(shifted, model.conv1.weight, model.conv1.bias, stride=2)
    )
    strides = [(b[0].conv1.stride, b[0].conv2.stride) for b in (model.layer1, model.layer2)]
    assert strides == [((1, 1), (1, 1)), ((2, 2), (1, 1))]
    assert {m.eps for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)} == {1e-3}


def _small_export(folder: Path, **entry: object) -> Path:
    folder.mkdir()
    weight = {"name": "conv1/bias", "shape": [64], "dtype": "float32", **entry}
    manifest = {"weightsManifest": [{"paths": ["a.bin"], "weights": [weight]}]}
    (folder / "model.json").write_text(json.dumps(manifest))
    (folder / "a.bin").write_bytes(b"\0" * 256)
    return folder


def test_an_archive_is_read_like_a_folder(tmp_path: Path) -> None:
    """The package's .tgz needs no unpacking; this one has one tensor only, and says so."""
    folder = _small_export(tmp_path / "ResNet50")
    with tarfile.open(tmp_path / "p.tgz", "w:gz") as archive:
        archive.add(folder, "package/ResNet50")
    with pytest.raises(DataError, match="does not fit KerasResNet50: 319 "):
        load_keras_resnet50(tmp_path / "p.tgz")


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"shape": [65]}, "shards end before 'conv1/bias'"),
        ({"dtype": "uint8"}, "must be float32, got uint8"),
        ({"name": "conv9/bias"}, "the layer 'conv9'"),
    ],
)
def test_a_wrong_export_says_what_is_wrong(tmp_path: Path, entry: dict[str, object], message: str) -> None:
    """Short shards, quantised weights and other networks are told apart."""
    with pytest.raises(DataError, match=message):
        load_keras_resnet50(_small_export(tmp_path / "x", **entry))


def test_missing_and_damaged_exports_are_one_sentence(tmp_path: Path) -> None:
    """No folder, no model.json, broken JSON, a missing shard, a broken archive."""
    with pytest.raises(DataError, match="no tfjs export"):
        load_keras_resnet50(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no `model\.json`"):
        load_keras_resnet50(tmp_path)
    folder = _small_export(tmp_path / "x")
    (folder / "a.bin").unlink()
    with pytest.raises(DataError, match=r"lacks 'a\.bin'"):
        load_keras_resnet50(folder)
    (folder / "model.json").write_text("{")
    with pytest.raises(DataError, match="no readable tfjs"):
        load_keras_resnet50(folder)
    (tmp_path / "broken.tgz").write_bytes(b"\x1f\x8b" + b"x" * 50)
    with pytest.raises(DataError, match=r"not a whole \.tgz"):
        load_keras_resnet50(tmp_path / "broken.tgz")
