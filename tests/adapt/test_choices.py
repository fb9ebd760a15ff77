"""What a method is set to and what it moves: presets, parameters, options and their errors."""

from __future__ import annotations

import pytest
import torch
from adapt_networks import SPECS, TinyNetwork, random_images, small_resnet, small_vit, tiny_images
from torch import nn

import sicl
from sicl.adapt import METHODS, BatchNorm, Eata, Method, Rotta, Sar, Sotta, Tent
from sicl.adapt._augment import strong_augmentation
from sicl.adapt._parameters import last_stage_norms
from sicl.adapt._robustbn import RobustBatchNorm
from sicl.engine.norms import frozen_statistics, norm_layers, record_statistics
from sicl.engine.split import Split
from sicl.errors import InputError, OptionError, UnsupportedModelError


def test_the_public_names_are_the_registered_methods() -> None:
    """`sicl.Tent` and its neighbours are the classes of the registry."""
    assert {getattr(sicl, kind.__name__) for kind in METHODS.values()} == set(METHODS.values())


def test_presets_are_the_papers_table() -> None:
    """The appendix, value by value."""
    eata = [Eata.for_dataset(name) for name in ("cifar10", "cifar100", "imagenet")]
    assert [spec.lr for spec in eata] == [0.005, 0.005, 0.00025]
    assert [spec.similarity for spec in eata] == [0.4, 0.4, 0.05]
    assert [spec.fisher_alpha for spec in eata] == [1, 1, 2000]
    assert all(spec.fisher_samples == 2000 and spec.margin == 0.4 for spec in eata)
    tent = [Tent.for_dataset(name) for name in ("cifar10", "cifar100", "imagenet")]
    assert [(spec.lr, spec.optimizer) for spec in tent] == [(1e-3, "adam")] * 2 + [(2.5e-4, "sgd")]
    sotta = [Sotta.for_dataset(name) for name in ("cifar10", "cifar100", "imagenet")]
    assert [spec.threshold for spec in sotta] == [0.99, 0.66, 0.33]
    assert {(s.lr, s.rho, s.momentum, s.capacity, s.epochs) for s in sotta} == {(1e-3, 0.5, 0.2, 64, 1)}
    rotta = Rotta.for_dataset("imagenet")
    assert (rotta.lr, rotta.alpha, rotta.nu, rotta.lambda_t, rotta.lambda_u) == (1e-3, 0.05, 1e-3, 1.0, 1.0)
    assert [Sar.for_dataset("cifar10", architecture=a).lr for a in ("resnet", "vit")] == [2.5e-4, 1e-3]
    assert Sar.for_dataset("cifar100").rho == 0.5


def test_the_official_preset_differs_in_the_radius_of_sam() -> None:
    """Where the appendix prints 0.5 the official code has 0.05."""
    for kind in (Sar, Sotta):
        assert kind.for_dataset("imagenet", preset="official").rho == 0.05
    assert Tent.for_dataset("cifar10", preset="official") == Tent.for_dataset("cifar10")


@pytest.mark.parametrize("kind", METHODS.values())
def test_every_method_has_a_preset_for_every_data_set(kind: type[Method]) -> None:
    """The demo has those of CIFAR-10; options given beside the preset win."""
    for name in ("cifar10", "cifar100", "imagenet"):
        assert isinstance(kind.for_dataset(name, preset="official", architecture="vit"), kind)
    assert kind.for_dataset("demo", seed=3) == kind.for_dataset("cifar10", seed=3)
    assert kind.for_dataset("demo", predict="after").predict == "after"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "cifar11"}, "Did you mean 'cifar10'"),
        ({"name": "demo", "preset": "mine"}, "`preset` must be one of paper, official"),
        ({"name": "demo", "architecture": "mlp"}, "`architecture` must be one of resnet, vit"),
    ],
)
def test_unknown_presets_are_named(options: dict[str, str], message: str) -> None:
    """The error lists the known ones."""
    with pytest.raises(OptionError, match=message):
        Tent.for_dataset(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "option", "value"),
    [
        (Tent, "lr", 0.0),
        (Tent, "steps", 0),
        (Tent, "optimizer", "lbfgs"),
        (Eata, "fisher_alpha", -1.0),
        (Eata, "similarity", 1.5),
        (Eata, "fisher_samples", 0),
        (Sar, "rho", 0.0),
        (Sar, "recovery", -0.1),
        (Rotta, "nu", 1.5),
        (Rotta, "lambda_u", -1.0),
        (Rotta, "update_every", 0),
        (Sotta, "threshold", 1.5),
        (Sotta, "capacity", 0),
        (Sotta, "confidence", "softmax"),
    ],
)
def test_options_out_of_range_are_refused_by_name(kind: type[Method], option: str, value: object) -> None:
    """The sentence starts with the option."""
    with pytest.raises(OptionError, match=f"^`{option}` must"):
        kind(**{option: value})


def test_eata_without_source_data_says_how_to_go_without() -> None:
    """The error names the option that needs no source data, and that option works."""
    with pytest.raises(InputError, match=r"Eata\(fisher_alpha=0\)"):
        Eata().attach(small_resnet())
    assert Eata(fisher_alpha=0).attach(small_resnet())(random_images()).shape == (8, 10)


def test_eata_measures_the_fisher_information_on_so_many_samples() -> None:
    """With fewer batches than the source has, the weights differ; they are never negative."""
    images = random_images(32, seed=4)
    source = sicl.SourceData(images, torch.zeros(32, dtype=torch.int64))
    few, all_ = (
        Eata(fisher_samples=n, fisher_batch=8).attach(small_resnet(), source=source) for n in (8, 32)
    )
    assert any(not torch.equal(a, b) for a, b in zip(few.fisher, all_.fisher))
    assert all((weight >= 0).all() for weight in all_.fisher)
    assert all(p.grad is None for p in all_.network.parameters())


@pytest.mark.parametrize(
    "name", [name for name in SPECS if name not in ("source", "batchnorm", "cotta", "lame")]
)
def test_a_model_without_norm_layers_is_refused(name: str) -> None:
    """The sentence names the method and the way out."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    source = sicl.SourceData(torch.rand(2, 3, 2, 2), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(UnsupportedModelError, match=rf"`{type(SPECS[name]).__name__}` needs .*`Source\(\)`"):
        SPECS[name].attach(network, source=source)


def test_batch_norm_and_rotta_say_which_statistics_they_miss() -> None:
    """A transformer has no batch norm; a norm may have no running statistics."""
    with pytest.raises(UnsupportedModelError, match="`BatchNorm` needs batch normalisation"):
        BatchNorm().attach(small_vit())
    network = nn.Sequential(nn.BatchNorm2d(3, track_running_stats=False), nn.Flatten(), nn.Linear(12, 3))
    with pytest.raises(UnsupportedModelError, match="`Rotta` needs batch norms with running statistics"):
        Rotta().attach(network)


def test_the_last_stage_is_layer4_or_the_last_quarter_of_the_blocks() -> None:
    """For transformers the final norm belongs to it; a network of one stage has none."""
    resnet = last_stage_norms(small_resnet())
    assert resnet == {name for name, _ in norm_layers(small_resnet()) if name.startswith("layer4")}
    blocks = {f"blocks.{i}.norm{j}" for i in (9, 10, 11) for j in (1, 2)}
    assert last_stage_norms(small_vit()) == blocks | {"norm"}
    assert last_stage_norms(TinyNetwork()) == frozenset()


def test_rotta_predicts_with_fixed_statistics_that_the_engine_understands() -> None:
    """Recorded statistics are the running ones, and a split resumes the teacher exactly."""
    adapter = Rotta(capacity=8, update_every=8).attach(small_resnet())
    for seed in range(3):
        adapter(random_images(seed=seed))
    images = random_images(seed=7)
    layers = [m for m in adapter.network.modules() if isinstance(m, RobustBatchNorm)]
    with torch.no_grad():
        expected = adapter.network(images)
        with record_statistics(adapter.network) as recorded:
            adapter.network(images)
        assert all(torch.equal(recorded[layer][0], layer.running_mean) for layer in layers)
        with frozen_statistics(adapter.network, recorded):
            assert torch.equal(adapter.network(images), expected)
    for statistics in ("frozen", None):
        split = Split(adapter.network, statistics=statistics)
        begun = split.run(images)
        assert torch.equal(begun.logits, expected)
        twice = split.resume(torch.cat([begun.features] * 2), begun, groups=2)
        torch.testing.assert_close(twice[8:], expected)


def test_rottas_teacher_and_student_share_what_never_moves() -> None:
    """Convolutions are one tensor in both, norm parameters are two."""
    adapter = Rotta().attach(small_resnet())
    assert adapter.network.conv1.weight is adapter.student.conv1.weight
    assert adapter.network.bn1.weight is not adapter.student.bn1.weight
    assert adapter.network.bn1.running_mean is not adapter.student.bn1.running_mean


@pytest.mark.parametrize("name", SPECS)
def test_a_norm_layer_that_is_never_called_does_no_harm(name: str) -> None:
    """An auxiliary head's parameters get no gradient and stay as they are."""
    network = TinyNetwork()
    network.unused = nn.BatchNorm2d(2)
    source = sicl.SourceData(tiny_images(8), torch.zeros(8, dtype=torch.int64))
    adapter = SPECS[name].attach(network, source=source)
    for seed in range(3):
        assert torch.isfinite(adapter(tiny_images(8, seed=seed))).all()
    assert torch.equal(adapter.network.unused.weight, torch.ones(2))


@pytest.mark.parametrize("name", ["rotta", "sotta"])
def test_updates_come_every_so_many_samples_whatever_the_batches(name: str) -> None:
    """A batch of 21 with an update every 8 does two; the leftover counts towards the next."""
    adapter = SPECS[name].attach(small_resnet())
    for n, updates in ((21, 2), (2, 2), (1, 3), (8, 4)):
        adapter(random_images(n))
        assert adapter.counters["updates"] == updates


def test_sotta_leaves_the_network_alone_until_two_samples_are_sure() -> None:
    """Nothing confident: no update, no statistics."""
    adapter = Sotta(threshold=1.0, update_every=4).attach(TinyNetwork())
    before = adapter.state_dict()["network"]
    adapter(tiny_images())
    after = adapter.state_dict()["network"]
    assert adapter.counters["updates"] == 0
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_sotta_filters_with_sicl() -> None:
    """The paper's use case keeps other samples than the softmax does, and its state survives a stop."""
    batches = [random_images(seed=seed, size=32) for seed in range(3)]
    model = sicl.load_model("demo")
    plain = Sotta(threshold=0.955, update_every=8)
    spec = Sotta(threshold=0.955, update_every=8, confidence=sicl.SICL(variants=4, content_variants=4))
    whole, stopped, softmax = spec.attach(model), spec.attach(model), plain.attach(model)
    for images in batches[:2]:
        whole(images)
        softmax(images)
    assert whole.counters["kept"] > 0
    assert not torch.equal(whole.memory.images, softmax.memory.images)
    stopped.load_state_dict(whole.state_dict())
    assert torch.equal(stopped(batches[2]), whole(batches[2]))
    assert stopped.counters == whole.counters
    assert all(torch.equal(a, b) for a, b in zip(stopped.parameters, whole.parameters))


def test_strong_augmentation_changes_images_within_bounds() -> None:
    """Shape, type and range stay; the same generator state gives the same images; the input is untouched."""
    images = random_images(4, size=32)
    before = images.clone()
    out = [strong_augmentation(images, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert torch.equal(images, before)
    assert torch.equal(out[0], out[1])
    assert not torch.equal(out[0], out[2])
    assert out[0].shape == images.shape
    assert out[0].dtype == images.dtype
    assert float(out[0].min()) >= 0
    assert float(out[0].max()) <= 1


def test_strong_augmentation_is_strong_but_keeps_the_picture() -> None:
    """A smooth picture stays correlated with itself, and is not returned as it was."""
    line = torch.linspace(0.2, 0.8, 32)
    image = (line.view(1, 1, 1, 32) + 0.2 * line.view(1, 1, 32, 1)).expand(2, 3, 32, 32) - 0.1
    correlations = []
    for seed in range(20):
        out = strong_augmentation(image, torch.Generator().manual_seed(seed))
        assert float((out - image).abs().mean()) > 0.01
        # A flip reverses the picture, so either it or its mirror correlates.
        pairs = [torch.stack([side.flatten(), out.flatten()]) for side in (image, image.flip(-1))]
        correlations.append(max(float(torch.corrcoef(pair)[0, 1]) for pair in pairs))
    assert min(correlations) > 0.8


def test_hue_turns_colours_and_leaves_greys() -> None:
    """A third of a turn takes red to green, green to blue; no turn is the identity."""
    from sicl.adapt._augment import _hue

    red, green, blue = (torch.eye(3)[i].view(1, 3, 1, 1) for i in range(3))
    torch.testing.assert_close(_hue(red, 1 / 3), green, atol=1e-5, rtol=0)
    torch.testing.assert_close(_hue(green, 1 / 3), blue, atol=1e-5, rtol=0)
    images = random_images(4)
    torch.testing.assert_close(_hue(images, 0.0), images, atol=1e-5, rtol=0)
    grey = torch.full((1, 3, 2, 2), 0.4)
    torch.testing.assert_close(_hue(grey, 0.2), grey)
