"""`Preprocess`: from a picture to what a model takes, and how it travels with the model."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import sicl
from sicl.errors import DataError, InputError, OptionError
from sicl.models.checkpoint import ModelConfig, save_checkpoint
from sicl.models.efficientnet import DEPTHS, EfficientNetLite
from sicl.models.preprocess import Normalized, Preprocess, preprocess_of
from sicl.models.vit import VisionTransformer
from sicl.models.zoo import load_model


def _picture(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


@pytest.mark.parametrize(("width", "height"), [(50, 40), (40, 50), (7, 90), (32, 32), (300, 20)])
@pytest.mark.parametrize("fit", ["crop", "squash"])
def test_any_picture_becomes_the_models_size_in_unit_range(width: int, height: int, fit: str) -> None:
    """Wide, tall, small and large pictures all come out as 3 x size x size in [0, 1]."""
    image = Preprocess(size=32, resize=36, fit=fit)(_picture(width, height))
    assert image.shape == (3, 32, 32)
    assert image.dtype == torch.float32
    assert 0 <= image.min() <= image.max() <= 1


def test_the_crop_is_the_centre_of_the_resized_picture() -> None:
    """Worked out by hand: 80 x 40 becomes 20 x 10, of which columns 6 to 13 and rows 1 to 8 stay."""
    picture = _picture(80, 40)
    small = np.asarray(picture.resize((20, 10), Image.Resampling.BICUBIC))
    made = Preprocess(size=8, resize=10, interpolation="bicubic").pixels(picture)
    assert np.array_equal(made, small[1:9, 6:14])


def test_a_picture_of_the_models_size_is_taken_as_it_is() -> None:
    """A folder of prepared images is not resized a second time."""
    picture = _picture(32, 32)
    assert np.array_equal(Preprocess(size=32, resize=40).pixels(picture), np.asarray(picture))


@pytest.mark.parametrize("mode", ["L", "RGBA", "P"])
def test_grey_and_transparent_pictures_become_rgb(mode: str) -> None:
    """The model always gets three channels."""
    assert Preprocess(size=8)(_picture(9, 8).convert(mode)).shape == (3, 8, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "`size` must be > 0"),
        ({"size": 32, "resize": 20}, "`resize` must be at least `size` = 32"),
        ({"size": 32, "interpolation": "cubic"}, "Did you mean 'bicubic'"),
        ({"size": 32, "mean": 0.5}, "`mean` must be one number for each channel"),
        ({"size": 32, "std": (1, 0, 1)}, r"`std\[1\]` must be > 0"),
    ],
)
def test_a_wrong_field_is_one_sentence(options: dict[str, Any], message: str) -> None:
    """Specs are checked when made."""
    with pytest.raises(OptionError, match=message):
        Preprocess(**options)


def test_it_travels_with_a_checkpoint_and_with_copies(tmp_path: Path) -> None:
    """Saved in the header, read back by `load_model`, kept by copies and pickles."""
    config = ModelConfig(arch="resnet18_gn", width=8)
    wide = Preprocess(size=48, resize=50, interpolation="bicubic", mean=config.mean, std=config.std)
    metadata = {**config.to_metadata(), "preprocess": wide.to_json()}
    save_checkpoint(tmp_path / "m.safetensors", config.build().state_dict(), metadata)
    model = load_model(tmp_path / "m.safetensors")
    assert preprocess_of(model) == wide
    assert preprocess_of(copy.deepcopy(model)) == wide
    assert preprocess_of(pickle.loads(pickle.dumps(model))) == wide
    with pytest.raises(DataError, match=r"'m' has a damaged `preprocess`"):
        Preprocess.from_json("[]", source="m")


def test_the_demo_model_takes_32_pixels() -> None:
    """Every loaded model has its `preprocess`."""
    assert sicl.load_model("demo").preprocess.size == 32


def _tiny_vit(image_size: int, **options: Any) -> VisionTransformer:
    torch.manual_seed(0)
    shape = {"patch": 16, "dim": 64, "depth": 2, "n_heads": 1, "n_classes": 5}
    half = (0.5, 0.5, 0.5)
    return VisionTransformer(image_size=image_size, mean=half, std=half, **shape, **options).eval()


def test_a_plain_vit_is_read_from_its_tensors_alone(tmp_path: Path) -> None:
    """64 patches make 128 pixels, to which smaller images are enlarged and clamped inside the network."""
    save_file(_tiny_vit(128).state_dict(), tmp_path / "m.safetensors")
    model = load_model(tmp_path / "m.safetensors")
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    large = torch.nn.functional.interpolate(images, (128, 128), mode="bicubic", align_corners=False)
    assert model.preprocess.size == 128
    with torch.no_grad():
        torch.testing.assert_close(model(images), _tiny_vit(128)(large.clamp(0, 1)))


def test_a_vit_for_photos_refuses_another_size(tmp_path: Path) -> None:
    """196 patches are 224 pixels; a model of photos never enlarges silently."""
    save_file(_tiny_vit(224).state_dict(), tmp_path / "m.safetensors")
    model = load_model(tmp_path / "m.safetensors")
    assert (model.preprocess.size, model.preprocess.resize) == (224, 248)
    with pytest.raises(InputError, match="takes images of 224 x 224 pixels, got 32 x 32"):
        model(torch.rand(1, 3, 32, 32))


def test_efficientnet_lite_is_read_under_both_names(tmp_path: Path) -> None:
    """timm's names and the older package's, which come in the same order, give the same network."""
    torch.manual_seed(0)
    network = EfficientNetLite(DEPTHS["efficientnet_lite0"], n_classes=3).eval()
    state = network.state_dict()
    old = {name.replace("conv_dw.", "_depthwise_conv."): value for name, value in state.items()}
    old = {name.replace("conv_stem", "_conv_stem").replace("classifier", "_fc"): v for name, v in old.items()}
    torch.save(old, tmp_path / "old.pth")
    save_file(state, tmp_path / "timm.safetensors")
    images = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    for name in ("old.pth", "timm.safetensors"):
        assert torch.equal(load_model(tmp_path / name, n_classes=3)(images), network(images))


def test_same_padding_puts_the_odd_pixel_behind() -> None:
    """A stride-2 network of even and odd images gives what TensorFlow's padding gives: ceil(length / 2)."""
    network = EfficientNetLite(DEPTHS["efficientnet_lite0"], n_classes=3).eval()
    seen: list[tuple[int, ...]] = []
    network.bn1.register_forward_hook(lambda _m, _a, out: seen.append(tuple(out.shape[-2:])))
    network(torch.rand(1, 3, 33, 40))
    assert seen == [(17, 20)]


def test_logits_in_a_dictionary_are_unwrapped() -> None:
    """Some libraries return a mapping."""

    class Wrapped(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"logits": images.mean((2, 3))}

    assert Normalized(Wrapped(), (0, 0, 0), (1, 1, 1))(torch.ones(2, 3, 4, 4)).tolist() == [[1.0] * 3] * 2
