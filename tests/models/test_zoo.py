"""`load_model`: the embedded network, files good and bad, and other libraries' models."""

from __future__ import annotations

import sys
from collections import OrderedDict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from sicl.errors import DataError, OptionError
from sicl.models.checkpoint import ModelConfig, read_checkpoint, save_checkpoint
from sicl.models.cifar import CIFAR100_MEAN, CIFAR100_STD, resnet18, resnet18_gn
from sicl.models.preprocess import Preprocess
from sicl.models.vit import vit_small
from sicl.models.zoo import DEMO_WEIGHTS, Normalized, load_model


@pytest.fixture(scope="module")
def small() -> nn.Module:
    torch.manual_seed(0)
    return resnet18(width=4, n_classes=7).eval()


IMAGES = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def test_the_demo_model_classifies_cifar_images_well() -> None:
    """On embedded test images the 16-wide ResNet-18 is right more than 85 times in 100."""
    from sicl.data import load_dataset

    data = load_dataset("demo")
    images = torch.from_numpy(data.images[np.arange(300)]).permute(0, 3, 1, 2).float() / 255
    model = load_model("demo", n_classes=10)
    with torch.no_grad():
        right = model(images).argmax(1).numpy() == data.labels[:300]
    assert right.mean() > 0.85


def test_the_demo_model_is_float32_in_eval_mode_with_its_configuration_in_the_file() -> None:
    """Half precision is for storage only, and the file says what it is."""
    model = load_model("demo")
    _, metadata = read_checkpoint(DEMO_WEIGHTS)
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert metadata["arch"] == "resnet18"
    assert metadata["width"] == "16"
    assert float(metadata["accuracy"]) == pytest.approx(0.9124)


def test_a_checkpoint_round_trips_with_its_configuration(tmp_path: Path) -> None:
    """Architecture, width, classes and normalisation come back from the file alone."""
    config = ModelConfig(arch="resnet50", width=4, n_classes=9, mean=CIFAR100_MEAN, std=CIFAR100_STD)
    model = config.build().eval()
    save_checkpoint(tmp_path / "m.safetensors", model.state_dict(), config.to_metadata())
    loaded = load_model(tmp_path / "m.safetensors")
    assert torch.equal(loaded(IMAGES), model(IMAGES))
    assert not list(tmp_path.glob("*.part"))


def test_half_precision_keeps_what_it_cannot_hold_in_single(tmp_path: Path) -> None:
    """A variance beyond 65,504 became infinite, and the file could not be read again."""
    state = {"running_var": torch.tensor([1e5, 2.0]), "weight": torch.tensor([0.5])}
    save_checkpoint(tmp_path / "m.safetensors", state, {}, dtype=torch.float16)
    found, _ = read_checkpoint(tmp_path / "m.safetensors")
    assert torch.equal(found["running_var"], state["running_var"])
    assert found["weight"].dtype is torch.float16


def test_architecture_width_and_classes_are_inferred_without_metadata(tmp_path: Path) -> None:
    """A bare safetensors file is enough for the package's own networks."""
    for model in (resnet18(width=4, n_classes=7), resnet18_gn(width=4), vit_small(width=2, n_classes=5)):
        save_file(model.state_dict(), tmp_path / "bare.safetensors")
        assert torch.equal(load_model(tmp_path / "bare.safetensors")(IMAGES), model.eval()(IMAGES))


def test_missing_batch_counters_do_not_matter(small: nn.Module, tmp_path: Path) -> None:
    """`num_batches_tracked` is bookkeeping that some writers leave out."""
    state = {name: value for name, value in small.state_dict().items() if "num_batches" not in name}
    save_file(state, tmp_path / "m.safetensors")
    assert torch.equal(load_model(tmp_path / "m.safetensors")(IMAGES), small(IMAGES))


@pytest.mark.parametrize("nest", [(), ("state_dict",), ("net",), ("checkpoint_of", "model")])
def test_nested_and_prefixed_pickles_are_unwrapped(
    small: nn.Module, tmp_path: Path, nest: tuple[str, ...]
) -> None:
    """Common keys and the data-parallel prefix are taken off; an unknown key is one sentence."""
    saved: Any = OrderedDict((f"module.{name}", value) for name, value in small.state_dict().items())
    for key in reversed(nest):
        saved = {key: saved, "epoch": 3}
    torch.save(saved, tmp_path / "m.pt")
    if "checkpoint_of" in nest:
        with pytest.raises(DataError, match="holds no tensors"):
            load_model(tmp_path / "m.pt", arch="resnet18")
    else:
        assert torch.equal(load_model(tmp_path / "m.pt", arch="resnet18")(IMAGES), small(IMAGES))


def test_given_normalisation_wins(small: nn.Module, tmp_path: Path) -> None:
    """A pickle has no configuration, so mean and std can be given."""
    torch.save(small.state_dict(), tmp_path / "m.pt")
    loaded = load_model(tmp_path / "m.pt", mean=(0, 0, 0), std=(1, 1, 1))
    assert loaded.mean.abs().sum() == 0
    assert not torch.allclose(loaded(IMAGES), small(IMAGES))


class _Evil:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, ("raise SystemExit('code ran')",))


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    """Loading never runs code from the file."""
    torch.save({"state_dict": _Evil()}, tmp_path / "evil.pt")
    with pytest.raises(DataError, match="could run code"):
        load_model(tmp_path / "evil.pt", arch="resnet18")


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
@pytest.mark.parametrize("keep", [0, 100, 5000])
def test_a_truncated_file_is_one_sentence(small: nn.Module, tmp_path: Path, suffix: str, keep: int) -> None:
    """A damaged file never shows a library's traceback as its message."""
    path = tmp_path / f"m.{suffix}"
    if suffix == "pt":
        torch.save(small.state_dict(), path)
    else:
        save_file(small.state_dict(), path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError) as caught:
        load_model(path, arch="resnet18")
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)


def _with(state: dict[str, Tensor], **changes: Tensor | None) -> dict[str, Tensor]:
    merged = {**state, **{name.replace("__", "."): value for name, value in changes.items()}}
    return {name: value for name, value in merged.items() if value is not None}


@pytest.mark.parametrize(
    ("changes", "arch", "message"),
    [
        ({"layer1__0__bn1__bias": None}, None, r"1 \(layer1.0.bn1.bias\) missing, none unexpected"),
        ({"extra": torch.zeros(1)}, None, r"none missing, 1 \(extra\) unexpected"),
        ({"layer1__0__bn1__bias": torch.zeros(5)}, None, r"of shape \(5,\), ResNet needs \(4,\)"),
        ({"fc__weight": None}, None, "has no tensors 'conv1.weight' and 'fc.weight'"),
        ({"conv1__weight": torch.zeros(4, 3, 7, 7)}, None, "'torchvision:resnet18'"),
        ({}, "resnet50", "missing"),
        ({}, "vit_small", "patch_embed.proj.weight"),
    ],
)
def test_a_state_dict_that_does_not_fit_says_why(
    small: nn.Module, tmp_path: Path, changes: dict[str, Tensor | None], arch: str | None, message: str
) -> None:
    """Names, shapes and architectures that differ are named in one sentence."""
    save_file(_with(small.state_dict(), **changes), tmp_path / "m.safetensors")
    with pytest.raises(DataError, match=message):
        load_model(tmp_path / "m.safetensors", arch=arch)


def test_the_wrong_number_of_classes_is_refused() -> None:
    """The caller's number of classes is checked, not believed."""
    with pytest.raises(OptionError, match="`n_classes` must be 10 for 'demo', got 100"):
        load_model("demo", n_classes=100)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("dmeo", OptionError, "Did you mean 'demo'"),
        ("nowhere.pt", DataError, "no checkpoint file 'nowhere.pt'"),
        ("nowhere.safetensors", DataError, "check the path"),
    ],
)
def test_unknown_names_and_missing_files_say_what_to_do(
    name: str, error: type[Exception], message: str
) -> None:
    """A typo gets the nearest name, a missing file its path."""
    with pytest.raises(error, match=message):
        load_model(name)


@pytest.mark.parametrize(
    ("library", "module"), [("timm", "timm"), ("torchvision", "torchvision"), ("hf", "transformers")]
)
def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch, library: str, module: str) -> None:
    """The error is the command to type."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(OptionError, match=rf"pip install 'sicl\[{library}\]'"):
        load_model(f"{library}:resnet50")


def test_a_library_built_for_another_torch_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken install is told apart from a missing one."""

    def broken(name: str) -> ModuleType:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr("sicl.models.libraries.importlib.import_module", broken)
    with pytest.raises(OptionError, match=r"nms does not exist\); install matching versions"):
        load_model("torchvision:resnet50")


class _Outside(nn.Module):
    """Another library's network: expects normalised images and has its own idea of an output."""

    def __init__(self, *, wrapped: bool = False) -> None:
        super().__init__()
        self.head = nn.Linear(3, 6)
        self.wrapped = wrapped
        self.seen = torch.zeros(())

    def forward(self, images: Tensor) -> Any:
        self.seen = images
        logits = self.head(images.mean((2, 3)))
        return SimpleNamespace(logits=logits) if self.wrapped else logits


def _fake(name: str, **attributes: Any) -> ModuleType:
    module = ModuleType(name)
    for key, value in attributes.items():
        setattr(module, key, value)
    return module


STATED = {
    "input_size": (3, 48, 48),
    "crop_pct": 0.75,
    "interpolation": "bicubic",
    "mean": (0.1, 0.2, 0.3),
    "std": (0.4, 0.5, 0.6),
}


class _Prepares(SimpleNamespace):
    """A library's own way from a picture to a tensor, with what it states about it."""

    def __init__(self, preprocess: Preprocess, **stated: Any) -> None:
        super().__init__(preprocess=preprocess, **stated)

    def __call__(self, picture: Image.Image, return_tensors: str = "") -> Any:
        mean, std = (torch.tensor(v).view(3, 1, 1) for v in (self.preprocess.mean, self.preprocess.std))
        made = (self.preprocess(picture) - mean) / std
        return {"pixel_values": made.unsqueeze(0)} if return_tensors else made


def _install(monkeypatch: pytest.MonkeyPatch, network: nn.Module, image_mean: Any) -> None:
    def unknown(name: str, *_: Any, **__: Any) -> Any:
        if name != "known":
            raise RuntimeError(f"Unknown model ({name})\nlong listing")
        return network

    loader = SimpleNamespace(from_pretrained=unknown)
    processor = _Prepares(
        Preprocess(size=48, fit="squash", mean=image_mean or (0,) * 3, std=image_mean or (1,) * 3),
        image_mean=image_mean,
        image_std=image_mean,
        do_normalize=True,
        size={"height": 48, "width": 48},
    )
    transforms = _Prepares(
        Preprocess(size=48, resize=64, mean=(0.15, 0.2, 0.3), std=(0.4, 0.5, 0.6)),
        crop_size=[48],
        resize_size=[64],
        mean=[0.15, 0.2, 0.3],
        std=[0.4, 0.5, 0.6],
        interpolation=SimpleNamespace(value="bilinear"),
    )
    bicubic = Preprocess(size=48, resize=64, interpolation="bicubic", mean=STATED["mean"], std=STATED["std"])
    weights = SimpleNamespace(DEFAULT=SimpleNamespace(transforms=lambda: transforms))
    fakes = {
        "timm": _fake(
            "timm",
            create_model=unknown,
            get_pretrained_cfg=lambda name: None,
            data=SimpleNamespace(
                resolve_data_config=lambda _, model: STATED, create_transform=lambda **_: _Prepares(bicubic)
            ),
        ),
        "torchvision": _fake(
            "torchvision", models=SimpleNamespace(get_model=unknown, get_model_weights=lambda name: weights)
        ),
        "transformers": _fake(
            "transformers",
            AutoModelForImageClassification=loader,
            AutoImageProcessor=SimpleNamespace(from_pretrained=lambda name: _given(processor)),
        ),
    }
    for name, module in fakes.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("sicl.models.libraries._reachable", lambda url: True)


def _given(processor: Any) -> Any:
    if processor.image_mean is None:
        raise OSError("no preprocessor_config.json")
    return processor


@pytest.mark.parametrize(
    ("library", "image_mean", "mean", "std", "resize"),
    [
        ("timm", None, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6), 64),
        ("torchvision", None, (0.15, 0.2, 0.3), (0.4, 0.5, 0.6), 64),
        ("hf", [0.2, 0.3, 0.4], (0.2, 0.3, 0.4), (0.2, 0.3, 0.4), 48),
    ],
)
def test_other_libraries_models_take_unit_images(
    monkeypatch: pytest.MonkeyPatch,
    library: str,
    image_mean: Any,
    mean: tuple[float],
    std: tuple[float],
    resize: int,
) -> None:
    """The normalisation comes with the model, and the logits come out as a tensor."""
    network = _Outside(wrapped=library == "hf")
    _install(monkeypatch, network, image_mean)
    model = load_model(f"{library}:known", n_classes=6)
    logits = model(IMAGES)
    expected = (IMAGES - torch.tensor(mean).view(3, 1, 1)) / torch.tensor(std).view(3, 1, 1)
    assert isinstance(model, Normalized)
    assert model.model is network
    assert logits.shape == (2, 6)
    torch.testing.assert_close(network.seen, expected)
    assert (model.preprocess.size, model.preprocess.resize, model.preprocess.mean) == (48, resize, mean)


def test_a_model_that_does_not_state_its_normalisation_is_not_guessed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without an image processor the caller has to give `mean` and `std`."""
    _install(monkeypatch, _Outside(wrapped=True), None)
    with pytest.raises(DataError, match="give `mean` and `std`"):
        load_model("hf:known")
    assert load_model("hf:known", mean=(0.5,) * 3, std=(0.5,) * 3).mean.flatten().tolist() == [0.5] * 3


@pytest.mark.parametrize(
    ("processor", "options"),
    [
        ("ViTImageProcessor", {"size": {"height": 48, "width": 48}}),
        ("CLIPImageProcessor", {"size": {"shortest_edge": 56}, "crop_size": {"height": 48, "width": 48}}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 48}, "crop_pct": 0.75}),
        ("ConvNextImageProcessor", {"size": {"shortest_edge": 384}}),
        (
            "DeiTImageProcessor",
            {"size": {"height": 56, "width": 56}, "crop_size": {"height": 48, "width": 48}},
        ),
        ("BitImageProcessor", {"size": {"shortest_edge": 55}, "crop_size": {"height": 48, "width": 48}}),
        (
            "PoolFormerImageProcessor",
            {"size": {"shortest_edge": 48}, "crop_size": {"height": 48, "width": 48}},
        ),
        ("EfficientNetImageProcessor", {"size": {"height": 48, "width": 48}, "resample": 0}),
        (
            "MobileViTImageProcessor",
            {"size": {"shortest_edge": 56}, "crop_size": {"height": 48, "width": 48}},
        ),
    ],
)
def test_pictures_are_prepared_as_an_image_processor_prepares_them(
    processor: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """A saved Hugging Face model is read with its processor: the same pixels, the same normalisation."""
    transformers = pytest.importorskip("transformers")
    size = options.get("crop_size", options["size"])
    size = size.get("height", size.get("shortest_edge"))
    config = transformers.ViTConfig(
        image_size=size, patch_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1
    )
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    theirs = getattr(transformers, processor)(**options)
    theirs.save_pretrained(tmp_path)
    model = load_model(f"hf:{tmp_path}")
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (400, 601, 3), np.uint8))
    expected = theirs(picture, return_tensors="pt")["pixel_values"]
    ours = (model.preprocess(picture).unsqueeze(0) - model.mean) / model.std
    # Its network gets the channels as the processor would give them.
    ours = ours.flip(1) if processor == "MobileViTImageProcessor" else ours
    torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        theirs_say = transformers.AutoModelForImageClassification.from_pretrained(tmp_path)(expected).logits
        torch.testing.assert_close(model(model.preprocess(picture).unsqueeze(0)), theirs_say)


def test_preparation_that_cannot_be_said_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is guessed: a library that pads where its configuration seems to crop is not imitated."""
    _install(monkeypatch, _Outside(), None)
    padded = _Prepares(Preprocess(size=48, resize=50, interpolation="bicubic"))
    sys.modules["timm"].data.create_transform = lambda **_: padded  # type: ignore[attr-defined]
    with pytest.raises(DataError, match=r"'timm:known' prepares its pictures in a way .* `sicl.Normalized"):
        load_model("timm:known")


def test_weights_out_of_reach_are_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No network and no cache: the error names the local file with `arch=`, without retries."""
    _install(monkeypatch, _Outside(), None)
    sys.modules["timm"].get_pretrained_cfg = lambda name: SimpleNamespace(hf_hub_id="nobody/nothing")  # type: ignore[attr-defined]
    monkeypatch.setattr("sicl.models.libraries._reachable", lambda url: False)
    with pytest.raises(DataError, match=r"load_model\('model.safetensors', arch='timm:known'\)"):
        load_model("timm:known")
    with pytest.raises(DataError, match="'hf:FOLDER'"):
        load_model("hf:known")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "gpu"}, "`device` must be 'cpu', 'cuda'"),
        ({"mean": 0.5}, "`mean` must be one number for each channel"),
        ({"std": "abc"}, "`std` must be one number for each channel"),
    ],
)
def test_a_wrong_option_is_one_sentence(options: dict[str, Any], message: str) -> None:
    """Device and normalisation are checked before anything is read."""
    with pytest.raises(OptionError, match=message):
        load_model("demo", **options)


def test_a_module_needs_no_loading(small: nn.Module) -> None:
    """The error says what to do with a model that is already there."""
    with pytest.raises(OptionError, match=r"sicl.Normalized\(model, mean, std\)"):
        load_model(small)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "example"),
    [
        ("stages.0.blocks.0.conv_dw.weight", "timm:convnext_tiny"),
        ("layers.0.blocks.0.attn.relative_position_bias_table", "timm:swin_tiny_patch4_window7_224"),
        ("features.denseblock1.denselayer1.norm1.weight", "timm:densenet121"),
        ("features.0.weight", "torchvision:vgg16"),
    ],
)
def test_names_of_a_known_family_say_which_arch_to_give(tmp_path: Path, name: str, example: str) -> None:
    """A checkpoint without `arch` whose names tell the library gets an example to type."""
    save_file({name: torch.zeros(2)}, tmp_path / "m.safetensors")
    with pytest.raises(DataError, match=f"arch='{example}'"):
        load_model(tmp_path / "m.safetensors")


def test_an_unknown_name_of_another_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first line of the library's message is passed on."""
    _install(monkeypatch, _Outside(), None)
    with pytest.raises(DataError, match=r"^timm could not make 'no' \(Unknown model \(no\)\); [^\n]*$"):
        load_model("timm:no")


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_checkpoint_can_name_another_librarys_architecture(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrapped: bool
) -> None:
    """Weights saved from the network, or from the wrapper around it, go into a fresh one."""
    trained = _Outside()
    kept = Normalized(trained, (0, 0, 0), (1, 1, 1)) if wrapped else trained
    save_file(kept.state_dict(), tmp_path / "m.safetensors")
    _install(monkeypatch, _Outside(), None)
    loaded = load_model(tmp_path / "m.safetensors", arch="timm:known")
    assert torch.equal(loaded.model.head.weight, trained.head.weight)
