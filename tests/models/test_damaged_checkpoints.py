"""A damaged checkpoint is a sentence, never a network of NaN, all of the memory, or code that runs."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from sicl import load_model
from sicl.errors import DataError, OptionError
from sicl.models.checkpoint import ModelConfig
from sicl.models.imagenet import load_keras_resnet50

CONFIG = ModelConfig(arch="resnet18", width=2, n_classes=3)
State = dict[str, Tensor]


@pytest.fixture
def state() -> State:
    """The weights of a very small ResNet-18."""
    torch.manual_seed(0)
    return CONFIG.build().state_dict()


def _one_value(name: str, value: float) -> Callable[[State], object]:
    def change(state: State) -> None:
        state[name].view(-1)[0] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_one_value("conv1.weight", float("nan")), "'conv1.weight' .* has values that are NaN"),
        (_one_value("fc.bias", float("inf")), "'fc.bias' .* has values that are NaN, infinite"),
        (_one_value("layer1.0.bn1.running_var", -1.0), "'layer1.0.bn1.running_var'"),
        (_one_value("layer2.0.conv1.weight", 1e30), "no weight of a trained network"),
        (lambda s: s.update({"fc.bias": s["fc.bias"] * 1j}), r"'fc.bias' \(torch.complex64\)"),
        (lambda s: s.update({"fc.bias": s["fc.bias"].to_sparse()}), "'fc.bias'"),
        (lambda s: s.update({"conv1.weight": torch.zeros(())}), "has no tensors 'conv1.weight'"),
        (lambda s: s.update({"conv1.weight": torch.zeros(60_000, 3, 3, 3)}), "of shape"),
        (lambda s: s.update({"conv1.weight": torch.zeros(0, 3, 3, 3)}), "`width` must lie in"),
        (lambda s: s.update({"layer": torch.zeros(1)}), "is not clear from its tensors|unexpected"),
    ],
)
def test_unsound_tensors_are_named(
    state: State, change: Callable[[State], object], message: str, tmp_path: Path
) -> None:
    """NaN, infinite and absurd values, negative variances, other layouts, widths that would take all memory."""
    change(state)
    torch.save(state, tmp_path / "a.pt")
    with pytest.raises(DataError, match=message):
        load_model(tmp_path / "a.pt")


@pytest.mark.parametrize("mean", ["", "x", "1,2", "nan,0,0", "1e400,1,1", "1e"])
def test_damaged_metadata_is_named(state: State, mean: str, tmp_path: Path) -> None:
    """A mean that is no triple of numbers."""
    save_file(state, tmp_path / "a.safetensors", {**CONFIG.to_metadata(), "mean": mean})
    with pytest.raises(DataError, match=r"'a.safetensors' is damaged or of another network: `mean"):
        load_model(tmp_path / "a.safetensors")


def test_a_zip_that_unpacks_to_more_than_its_size_is_not_read(tmp_path: Path) -> None:
    """torch stores weights as they are; a packed archive is a bomb."""
    content = io.BytesIO()
    torch.save({"a": torch.zeros(100_000)}, content)
    with (
        zipfile.ZipFile(content) as plain,
        zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    with pytest.raises(DataError, match="more than its size; it is not read"):
        load_model(tmp_path / "a.pt")


@pytest.mark.parametrize("name", ["x" * 300 + ".pt", "a\0.pt"])
def test_a_name_that_is_no_path_is_refused(name: str) -> None:
    """Before the file system sees it."""
    with pytest.raises(OptionError, match="must be a path"):
        load_model(name)


def test_a_tfjs_export_cannot_read_outside_its_folder(tmp_path: Path) -> None:
    """Its list of files is a stranger's."""
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    (tmp_path / "export").mkdir()
    for name in ("../secret.bin", str(tmp_path / "secret.bin")):
        group = {"paths": [name], "weights": [{"name": "conv1/bias", "shape": [16], "dtype": "float32"}]}
        (tmp_path / "export" / "model.json").write_text(json.dumps({"weightsManifest": [group]}))
        with pytest.raises(DataError, match=r"lacks 'secret.bin'"):
            load_keras_resnet50(tmp_path / "export")


@pytest.mark.parametrize("manifest", [3, [3], [{"paths": []}], [{"paths": [], "weights": [{"shape": "x"}]}]])
def test_a_tfjs_manifest_of_another_shape_is_named(tmp_path: Path, manifest: object) -> None:
    """Numbers for lists, missing keys."""
    (tmp_path / "model.json").write_text(json.dumps({"weightsManifest": manifest}))
    with pytest.raises(DataError, match="no readable tfjs"):
        load_keras_resnet50(tmp_path)
