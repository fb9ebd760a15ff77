"""What is refused in one sentence, with nothing executed: channels, sizes, pickles with code, extras, no network."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sicl
from sicl.errors import DataError, InputError, OptionError
from sicl.models.cifar import resnet18, resnet18_gn
from sicl.models.efficientnet import EfficientNetLite
from sicl.models.imagenet import KerasResNet50
from sicl.models.vit import vit_small

OWN: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: resnet18(width=4),
    "resnet18_gn": lambda: resnet18_gn(width=4),
    "vit_small": lambda: vit_small(width=8),
    "efficientnet": lambda: EfficientNetLite((1,) * 7, n_classes=3),
    "keras_resnet50": lambda: KerasResNet50(3),
    "normalized": lambda: sicl.Normalized(nn.Conv2d(3, 4, 1), (0.5,) * 3, (0.5,) * 3),
}


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize(
    ("shape", "remedy"),
    [
        ((2, 1, 32, 32), r"images\.expand\(-1, 3, -1, -1\)"),
        ((2, 4, 32, 32), r"images\[:, :3\]"),
        ((2, 7, 32, 32), "the channels it was trained on"),
        ((3, 32, 32), r"images\.unsqueeze\(0\)"),
    ],
)
def test_another_number_of_channels_is_refused(name: str, shape: tuple[int, ...], remedy: str) -> None:
    """Torch would repeat one grey channel three times without a word; every network of ours says what to do."""
    with pytest.raises(InputError, match=f"takes N x 3 x H x W images, got .*{remedy}"):
        OWN[name]()(torch.rand(shape))


class _Foreign(nn.Module):
    """Somebody's network for 32 x 32 RGB images; torch refuses others in its own words."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 900, 5)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.conv(images)).flatten(1))
        return logits


@pytest.mark.parametrize("method", [sicl.Source(), sicl.Tent(), sicl.Tent(predict="after")], ids=repr)
@pytest.mark.parametrize(
    ("shape", "remedy"),
    [
        ((2, 1, 32, 32), "repeat the grey channel"),
        ((2, 4, 32, 32), "leave out the alpha channel"),
        ((2, 3, 48, 48), "the size and channels that it was trained on"),
    ],
)
def test_what_somebodys_network_cannot_take_is_one_sentence(
    method: Any, shape: tuple[int, ...], remedy: str
) -> None:
    """Torch's complaint is in it, what to do as well, and the next batch is predicted as if nothing had been."""
    adapted = method.attach(_Foreign())
    with pytest.raises(
        InputError, match=rf"does not take images of {' x '.join(map(str, shape[1:]))}.*{remedy}"
    ):
        adapted(torch.rand(shape))
    assert adapted(torch.rand(2, 3, 32, 32)).shape == (2, 5)


def test_a_fault_of_the_network_itself_is_not_called_a_wrong_size() -> None:
    """Only what the network says about a batch again, and about shapes, is put into our words."""

    class Broken(_Foreign):
        def forward(self, images: Tensor) -> Tensor:
            raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="the disk is full"):
        sicl.Source().attach(Broken())(torch.rand(2, 3, 32, 32))


def test_another_size_than_the_models_is_refused() -> None:
    """A convolutional network takes any size and gets worse; who means it says so."""
    adapted = sicl.Source().attach(sicl.load_model("demo"))
    with pytest.raises(
        InputError, match=r"64 x 64 pixels, the model was made for 32 x 32: .*`model.preprocess`"
    ):
        adapted(torch.rand(2, 3, 64, 64))
    fixed = sicl.load_model("demo")
    fixed.preprocess = None  # type: ignore[assignment]
    sicl.Source().attach(fixed)(torch.rand(2, 3, 64, 64))


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return open, (str(self.path), "w")


@pytest.mark.parametrize("kind", ["file", "arch", "hf"])
def test_a_pickle_with_code_in_it_runs_nothing(tmp_path: Path, kind: str) -> None:
    """As a checkpoint, as another library's weights, and inside a Hugging Face folder."""
    trace, name = tmp_path / "ran", tmp_path / "model.pt"
    if kind == "hf":
        pytest.importorskip("transformers")
        name = tmp_path / "pytorch_model.bin"
        config = {"architectures": ["ViTForImageClassification"], "model_type": "vit", "hidden_size": 8}
        small = {"num_attention_heads": 1, "num_hidden_layers": 1, "image_size": 32, "patch_size": 8}
        (tmp_path / "config.json").write_text(json.dumps({**config, **small}))
    torch.save({"weight": _Evil(trace)}, name)
    options = {"arch": "torchvision:resnet18"} if kind == "arch" else {}
    with pytest.raises(DataError, match=r"could not make|could run code"):
        sicl.load_model(f"hf:{tmp_path}" if kind == "hf" else name, **options)
    assert not trace.exists()


@pytest.mark.parametrize(("name", "module"), [("timm:a", "timm"), ("hf:a", "transformers")])
def test_a_missing_extra_is_the_command_to_type(
    name: str, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is imported or fetched instead."""
    monkeypatch.setitem(sys.modules, module, None)
    extra = name.partition(":")[0]
    with pytest.raises(OptionError, match=rf"need the package {module}; .*`pip install 'sicl\[{extra}\]'`\."):
        sicl.load_model(name)


def test_no_network_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is in no cache, on a machine that reaches nobody: one try, one sentence."""
    pytest.importorskip("transformers")
    tries = []

    def unreachable(*_: object, **__: object) -> None:
        tries.append(1)
        raise OSError("Network is unreachable")

    for variable in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(socket, "create_connection", unreachable)
    with pytest.raises(DataError, match=r"not in the cache and the hub cannot be reached; .* 'hf:FOLDER'\."):
        sicl.load_model("hf:nobody/nothing-of-that-name")
    assert len(tries) <= 1
