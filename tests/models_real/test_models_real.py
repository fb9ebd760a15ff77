"""Real networks of timm and torchvision: run by `make test-models`, in an environment of its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES, PAGE, Architecture, examine
from PIL import Image

pytestmark = pytest.mark.models
pytest.importorskip("timm", reason="`make test-models` makes the environment", exc_type=ImportError)

import sicl  # noqa: E402
from sicl.errors import DataError  # noqa: E402
from sicl.models.libraries import load_timm, load_torchvision  # noqa: E402


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_a_network_keeps_its_predictions_and_resumes_at_its_cut(architecture: Architecture) -> None:
    """It attaches, predicts as before at batch 8 and 1, needs no whole passes, and the docs say where it is cut."""
    found = examine(architecture)
    # The engine may differ between machines; the cut may not.
    assert f"| `{architecture.name}` | `{found.cut}` |" in Path(PAGE).read_text(), "run `make architectures`"


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
