"""Real networks of timm and torchvision: run by `make test-models`, in an environment of its own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES, PAGE, Architecture, examine, versions
from PIL import Image

pytestmark = pytest.mark.models
pytest.importorskip("timm", reason="`make test-models` makes the environment", exc_type=ImportError)

import sicl  # noqa: E402
from sicl.errors import DataError, InputError  # noqa: E402
from sicl.models.libraries import load_timm, load_torchvision  # noqa: E402


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_a_network_keeps_its_predictions_and_resumes_at_its_cut(architecture: Architecture) -> None:
    """It attaches, predicts as before at batch 8 and 1, needs no whole passes, and the docs say where it is cut."""
    found = examine(architecture)
    # Whether bfloat16 pays differs between machines; the cut and the engine may not.
    row = f"| `{architecture.name}` | `{found.cut}` | {found.engine.split()[0]}"
    assert row in Path(PAGE).read_text(), f"{PAGE} is stale: run `make architectures`"


def test_the_page_has_these_networks_and_versions() -> None:
    """A network that was dropped, or another version of a library, makes the page stale."""
    text = Path(PAGE).read_text()
    assert re.findall(r"^\| `(\w+:\w+)`", text, re.MULTILINE) == [a.name for a in ARCHITECTURES]
    assert versions() in text, f"{PAGE} is stale: run `make architectures`"


def _photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (301, 400, 3), np.uint8))


@pytest.mark.parametrize(
    "name",
    ["resnet18", "vit_tiny_patch16_224", "efficientnet_b0", "tf_efficientnet_lite1", "mobilevit_xxs"],
)
def test_pictures_are_prepared_as_timm_prepares_them(name: str) -> None:
    """Pixel for pixel what timm's own evaluation transform gives, before normalisation."""
    import timm

    network, stated = load_timm(name, False, None)
    assert stated is not None
    config = timm.data.resolve_data_config({}, model=network)
    theirs = timm.data.create_transform(**{**config, "mean": (0.0,) * 3, "std": (1.0,) * 3})(_photo())
    torch.testing.assert_close(stated(_photo()), theirs)
    assert (stated.mean, stated.std) == (config["mean"], config["std"])


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0", "vit_b_16", "mobilenet_v3_small"])
def test_pictures_are_prepared_as_torchvision_prepares_them(name: str) -> None:
    """What the default weights' own transforms give, normalisation included."""
    import torchvision

    _, stated = load_torchvision(name, False, 10)
    assert stated is not None
    transforms = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (stated.mean, stated.std))
    torch.testing.assert_close((stated(_photo()) - mean) / std, transforms(_photo()))


@pytest.mark.parametrize("name", ["timm:mobilenetv3_small_050", "torchvision:shufflenet_v2_x0_5"])
def test_a_local_checkpoint_loads_with_arch(name: str, tmp_path: Path) -> None:
    """Weights saved from the library's network load with `arch=` and predict the same."""
    library, _, short = name.partition(":")
    network, stated = {"timm": load_timm, "torchvision": load_torchvision}[library](short, False, 5)
    torch.save(network.eval().state_dict(), tmp_path / "m.pth")
    model = sicl.load_model(tmp_path / "m.pth", arch=name, n_classes=5)
    images = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert model.preprocess == stated
    torch.testing.assert_close(model(images), network((images - model.mean) / model.std))


def _saved_by_transformers(folder: Path, kind: str) -> tuple[Any, Any]:
    """Save a small network with random weights and its image processor; return both."""
    import transformers

    vit = {"patch_size": 16, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3}
    square, edge = {"size": {"height": 64, "width": 64}}, {"size": {"shortest_edge": 64}}
    cropped = {"size": {"height": 72, "width": 72}, "crop_size": {"height": 64, "width": 64}}
    config, processor = {
        "ViT": (transformers.ViTConfig(image_size=64, **vit), transformers.ViTImageProcessor(**square)),
        "DeiT": (transformers.DeiTConfig(image_size=64, **vit), transformers.DeiTImageProcessor(**cropped)),
        "ConvNext": (
            transformers.ConvNextConfig(hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1]),
            transformers.ConvNextImageProcessor(**edge, crop_pct=0.875),
        ),
        "Swin": (
            transformers.SwinConfig(
                image_size=64, embed_dim=24, depths=[1, 1], num_heads=[2, 4], window_size=4
            ),
            transformers.ViTImageProcessor(**square, resample=3),
        ),
        "ResNet": (
            transformers.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1]),
            transformers.ConvNextImageProcessor(**edge, crop_pct=0.875),
        ),
        "PoolFormer": (
            transformers.PoolFormerConfig(hidden_sizes=[16, 16, 32, 32], depths=[2, 1, 1, 1]),
            transformers.PoolFormerImageProcessor(**edge, crop_size={"height": 64, "width": 64}),
        ),
        "MobileViT": (
            transformers.MobileViTConfig(image_size=64),
            transformers.MobileViTImageProcessor(
                size={"shortest_edge": 72}, crop_size={"height": 64, "width": 64}
            ),
        ),
    }[kind]
    config.num_labels = 7
    torch.manual_seed(0)
    network = getattr(transformers, f"{kind}ForImageClassification")(config).eval()
    network.save_pretrained(folder)
    processor.save_pretrained(folder)
    return network, processor


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["ViT", "DeiT", "ConvNext", "Swin", "ResNet", "PoolFormer", "MobileViT"])
def test_a_saved_hugging_face_model_predicts_as_in_its_own_library(kind: str, tmp_path: Path) -> None:
    """Processor and network are read from the folder; pictures, logits and classes are theirs; SICL attaches."""
    network, processor = _saved_by_transformers(tmp_path, kind)
    model = sicl.load_model(f"hf:{tmp_path}", n_classes=7)
    pixels = processor(_photo(), return_tensors="pt")["pixel_values"]
    images = model.preprocess(_photo()).unsqueeze(0)
    with torch.no_grad():
        # Their torch resizes, our Pillow does: a few pixels are rounded the other way.
        torch.testing.assert_close(model(images), network(pixels).logits, atol=5e-3, rtol=5e-3)
    out = sicl.SICL(variants=2, content_variants=2).attach(model)(images.expand(4, -1, -1, -1))
    assert torch.isfinite(out.confidence).all()


def test_a_vit_in_timms_names_is_the_same_network_in_both_libraries(tmp_path: Path) -> None:
    """Weights of timm's ViT-Tiny, with `arch=` and without: the same preprocessing, the same logits."""
    network, stated = load_timm("vit_tiny_patch16_224", False, 10)
    torch.save(network.state_dict(), tmp_path / "vit.pth")
    theirs = sicl.load_model(tmp_path / "vit.pth", arch="timm:vit_tiny_patch16_224", n_classes=10)
    ours = sicl.load_model(tmp_path / "vit.pth")
    assert theirs.preprocess == ours.preprocess == stated
    images = torch.rand(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(theirs(images), ours(images))


@pytest.mark.parametrize("shape", [(2, 1, 224, 224), (2, 3, 96, 96)])
def test_what_a_timm_vit_cannot_take_is_one_sentence(shape: tuple[int, ...]) -> None:
    """Grey images and another size, in front of a network that has one size."""
    network, stated = load_timm("vit_tiny_patch16_224", False, 10)
    assert stated is not None
    adapted = sicl.Source().attach(sicl.Normalized(network, stated.mean, stated.std, stated))
    with pytest.raises(
        InputError, match=r"images\.expand|made for 224 x 224: resize them with `model.preprocess`"
    ):
        adapted(torch.rand(shape))


def test_no_network_is_said_within_seconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Weights that are nowhere are one sentence at once."""
    monkeypatch.setattr("sicl.models.libraries._reachable", lambda url: False)
    with pytest.raises(DataError, match="arch='timm:resnet18'"):
        sicl.load_model("timm:resnet18")


def test_an_unknown_name_is_one_sentence() -> None:
    """A typo in a library's name."""
    with pytest.raises(DataError, match="could not make 'resnet81'"):
        sicl.load_model("timm:resnet81")
    with pytest.raises(DataError, match="could not make 'resnet81'"):
        sicl.load_model("torchvision:resnet81")
