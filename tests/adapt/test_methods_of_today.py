"""COME, DeYO, CoTTA, ROID and LAME: options, views, destroyed images, presets, bad input."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from adapt_networks import random_images, small_resnet, small_vit, tiny_images
from torch import Tensor, nn

import sicl
from sicl.adapt import Come, Cotta, Deyo, Eata, Lame, Method, Roid, Sar, Tent
from sicl.adapt._augment import strong_augmentation
from sicl.adapt._objective import opinion_entropy
from sicl.adapt._parameters import use_batch_statistics
from sicl.adapt._views import mean_over_views
from sicl.adapt.deyo import destroyed_images
from sicl.errors import OptionError

pytestmark = pytest.mark.filterwarnings("error")


def batches(n: int = 4, size: int = 12) -> list[Tensor]:
    return [random_images(size, seed=20 + i) for i in range(n)]


MAKERS = pytest.mark.parametrize("make", [small_resnet, small_vit])


def authors_come(z: Tensor, k: int) -> Tensor:
    """As published: unshifted exponentials, 1e-7 added to every mass."""
    z = z / z.norm(p=2, dim=-1, keepdim=True) * z.norm(p=2, dim=-1, keepdim=True).detach()
    total = z.exp().sum(dim=1, keepdim=True) + k
    masses = torch.cat([z.exp() / total, k / total], dim=1) + 1e-7
    return -(masses * masses.log()).sum(dim=1)


def test_an_opinion_holds_the_norm_of_the_logits() -> None:
    """Gradients are orthogonal to the logits; large logits neither overflow nor become NaN; zeros work."""
    z = (3 * torch.randn(6, 10, generator=torch.Generator().manual_seed(0))).requires_grad_()
    torch.testing.assert_close(opinion_entropy(z), authors_come(z, 10))
    (gradient,) = torch.autograd.grad(opinion_entropy(z).sum(), z)
    assert float((gradient * z.detach()).sum(dim=1).abs().max()) < 1e-5
    assert torch.isfinite(opinion_entropy(torch.tensor([[200.0, 0.0], [0.0, 0.0]]))).all()


@pytest.mark.parametrize("spec", [Eata(fisher_alpha=0), Sar(recovery=0.0), Deyo()])
def test_the_entropy_methods_take_comes_objective(spec: Method) -> None:
    """Other parameters come out, and the default is the entropy."""
    ways = {"margin": 2.0, "lr": 0.05}
    ways |= {"similarity": 1.0} if isinstance(spec, Eata) else {}
    ways |= {"threshold": -1.0} if isinstance(spec, Deyo) else {}
    after = []
    for objective in ("entropy", "come", "come-1000"):
        adapter = replace(spec, objective=objective, **ways).attach(small_resnet())  # type: ignore[arg-type]
        for images in batches(2):
            adapter(images)
        after.append(adapter.network.state_dict()["bn1.weight"])
    assert spec.objective == "entropy"  # type: ignore[attr-defined]
    assert not any(torch.equal(after[i], after[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_deyo_destroys_shapes_and_keeps_pixels() -> None:
    """Patches and pixels are only moved; patches stay whole; pixels move alike in all images and channels."""
    images, generator = random_images(3, size=8), torch.Generator().manual_seed(0)
    for how in ("patch", "pixel"):
        out = destroyed_images(images, how, generator)  # type: ignore[arg-type]
        assert out.shape == images.shape
        assert not torch.equal(out, images)
        assert torch.equal(out.flatten(2).sort(dim=2).values, images.flatten(2).sort(dim=2).values)
    tiles = {tuple(t.flatten().tolist()) for t in images[0].unfold(1, 2, 2).unfold(2, 2, 2).flatten(1, 2)[0]}
    patched = destroyed_images(images, "patch", generator)[0].unfold(1, 2, 2).unfold(2, 2, 2).flatten(1, 2)[0]
    assert {tuple(t.flatten().tolist()) for t in patched} == tiles
    alike = images[:1].expand(3, -1, -1, -1)
    assert torch.equal(*destroyed_images(alike, "pixel", generator)[:2])
    assert not torch.equal(*destroyed_images(alike, "patch", generator)[:2])
    assert destroyed_images(random_images(2, size=30), "patch", generator).shape == (2, 3, 30, 30)


def test_deyo_stands_still_when_no_sample_counts() -> None:
    """Neither filter lets one through: no step, no momentum."""
    for options in ({"margin": 1e-6}, {"margin": 2.0, "threshold": 1.0}):
        adapter = Deyo(lr=0.1, **options).attach(small_resnet())
        before = copy.deepcopy(adapter.network.state_dict())
        adapter(batches()[0])
        assert adapter.counters["updates"] == 0
        assert all(torch.equal(before[k], v) for k, v in adapter.network.state_dict().items())


def test_a_single_chosen_image_without_statistics_is_not_learnt() -> None:
    """An 8-pixel image reaches the last stage as one pixel: the stream goes on, nothing moves."""
    images = random_images(2, size=8)
    logits = Tent().attach(small_resnet())(images)
    entropies = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
    margin = float(entropies.mean()) / math.log(10)
    for spec in (Deyo(margin=margin, threshold=-1.0, lr=0.1), Roid(lr=0.1)):
        adapter = spec.attach(small_resnet())
        before = copy.deepcopy(adapter.network.state_dict())
        assert adapter(images).shape == (2, 10)
        assert adapter.counters["updates"] == 0
        assert all(torch.equal(before[k], v) for k, v in adapter.network.state_dict().items())


def test_cotta_restores_its_student_after_the_teacher_has_followed() -> None:
    """A share of 1 returns every weight, a share of 0.3 about as many; the teacher keeps what it took over."""
    images = batches()[0]
    start = small_resnet().conv1.weight.detach()
    for share in (1.0, 0.3):
        adapter = Cotta(lr=0.01, momentum=0.5, restore=share, views=0).attach(small_resnet())
        adapter(images)
        returned = float((adapter.student.conv1.weight == start).float().mean())
        assert returned == pytest.approx(share, abs=0.15)
        assert not torch.equal(adapter.network.conv1.weight, start)
        assert torch.equal(adapter.anchor.conv1.weight, start)


@MAKERS
@pytest.mark.parametrize("at_once", [2, 5, None])
def test_views_in_one_batch_are_views_one_by_one(make: Callable[[], nn.Module], at_once: int | None) -> None:
    """Each is normalised with statistics of its own; batch norms are left as they were found."""
    network = make().requires_grad_(False)
    use_batch_statistics(network)
    modes = [(m.training, dict(m.__dict__)) for m in network.modules()]
    images, generator = batches()[0], torch.Generator().manual_seed(4)
    alone = [network(strong_augmentation(images, generator)) for _ in range(5)]
    got = mean_over_views(network, images, 5, torch.Generator().manual_seed(4), at_once)
    torch.testing.assert_close(got, torch.stack(alone).mean(dim=0), rtol=1e-4, atol=1e-5)
    assert [(m.training, dict(m.__dict__)) for m in network.modules()] == modes


def test_views_too_many_for_the_memory_go_by_halves() -> None:
    """The mean is that of views one by one; a single one that does not fit is the error that it is."""
    network, images, sizes = small_resnet().requires_grad_(False), batches()[0], list[int]()
    use_batch_statistics(network)
    expected = mean_over_views(network, images, 5, torch.Generator().manual_seed(4), 1)

    def weigh(_: nn.Module, given: tuple[Tensor]) -> None:
        sizes.append(len(given[0]))
        if sizes[-1] > 24 or len(sizes) > 5:
            raise torch.OutOfMemoryError("too many")

    network.register_forward_pre_hook(weigh)
    got = mean_over_views(network, images, 5, torch.Generator().manual_seed(4), 5)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert sizes == [60, 24, 36, 12, 24]
    with pytest.raises(torch.OutOfMemoryError):
        mean_over_views(network, images, 5, torch.Generator(), 5)


def test_cotta_looks_at_views_only_where_the_source_is_unsure() -> None:
    """Below the threshold the mean over views, above it the plain teacher."""
    images = batches()[0]
    plain = Cotta(views=0).attach(small_resnet())(images)
    assert torch.equal(Cotta(views=3, threshold=0.0).attach(small_resnet())(images), plain)
    assert not torch.allclose(Cotta(views=3, threshold=1.0).attach(small_resnet())(images), plain)


def authors_prior(z: Tensor) -> Tensor:
    prior = z.softmax(1).mean(0)
    smooth = max(1 / z.shape[0], 1 / z.shape[1]) / torch.max(prior)
    return (prior + smooth) / (1 + smooth * z.shape[1])


def test_roids_prior_is_added_unless_asked_otherwise() -> None:
    """The default is a Bayesian change of prior; the network itself stays uncorrected for the update."""
    images = batches()[0]
    z = Roid(prior="none").attach(small_resnet())(images)
    torch.testing.assert_close(Roid().attach(small_resnet())(images), z + authors_prior(z).log())
    torch.testing.assert_close(Roid(prior="multiply").attach(small_resnet())(images), z * authors_prior(z))


def test_roid_survives_a_batch_of_equal_images() -> None:
    """Where the authors' code divides zero by zero nothing is dropped."""
    adapter = Roid(lr=0.01).attach(small_vit())
    images = random_images(1).expand(6, -1, -1, -1).clone()
    assert torch.isfinite(adapter(images)).all()
    assert adapter.counters["refused"] == 0
    assert adapter.counters["updates"] == 1


def test_lame_leaves_a_batch_of_one_as_it_is() -> None:
    """One image has no neighbours."""
    images = random_images(1)
    ours = Lame().attach(small_resnet())(images).softmax(dim=1)
    torch.testing.assert_close(ours, sicl.Source().attach(small_resnet())(images).softmax(dim=1))


def test_cotta_and_lame_need_no_norm_layers() -> None:
    """They move all weights, or none."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(8, 3))
    for spec in (Cotta(views=0), Lame()):
        assert spec.attach(network)(tiny_images()).shape == (4, 3)
    with pytest.raises(sicl.SiclError, match=r"`Cotta` needs layers with weights; Flatten has none"):
        Cotta().attach(nn.Flatten())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tent(objective="margin"), "`objective` must be one of entropy, come, come-1000"),
        (lambda: Come(objective="entropy"), "`objective` must be one of come, come-1000"),
        (lambda: Deyo(destroy="cut"), "`destroy` must be one of patch, pixel, occlusion"),
        (lambda: Deyo(threshold=2.0), "`threshold` must"),
        (lambda: Cotta(views=-1), "`views` must be >= 0"),
        (lambda: Cotta(loss="mse"), "`loss` must be one of"),
        (lambda: Roid(prior="divide"), "`prior` must be one of add, multiply, none"),
        (lambda: Roid(back=2.0), "`back` must"),
        (lambda: Lame(affinity="cosine"), "`affinity` must be one of rbf, knn, linear"),
        (lambda: Lame(neighbours=0), "`neighbours` must be > 0"),
        (lambda: Cotta(objective="come"), "`Cotta` has no option `objective`; it has predict, seed, lr, "),
        (lambda: Roid.for_dataset("cifar10", objective="come"), "`Roid` has no option `objective`"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(make: Callable[[], nn.Module], message: str) -> None:
    """Each names the option and what it may be."""
    with pytest.raises(OptionError, match=message):
        make()  # type: ignore[operator]


def test_authors_presets() -> None:
    """Value by value; COME has none for CIFAR and takes TENT's."""
    kinds, names = (Come, Deyo, Cotta, Roid), ("cifar10", "cifar100", "imagenet")
    specs = {(kind, name): kind.for_dataset(name, preset="official") for kind in kinds for name in names}
    assert [specs[Cotta, n].threshold for n in names] == [0.92, 0.72, 0.1]
    assert [specs[Cotta, n].restore for n in names] == [0.01, 0.01, 0.001]
    assert [specs[Cotta, n].loss for n in names] == ["cross_entropy", "cross_entropy", "symmetric"]
    assert [specs[Deyo, n].threshold for n in names] == [0.2, 0.2, 0.3]
    for kind in (Come, Deyo, Roid):
        assert [(specs[kind, n].lr, specs[kind, n].optimizer) for n in names] == [
            (1e-3, "adam"),
            (1e-3, "adam"),
            (2.5e-4, "sgd"),
        ]
    assert [kind.for_dataset("imagenet", architecture="vit").lr for kind in (Come, Deyo)] == [1e-3, 1e-3]
    assert Come() == Come(lr=2.5e-4, optimizer="sgd", steps=1, objective="come")


@pytest.mark.parametrize("spec", [Cotta(views=2, threshold=1.0), Roid(), Lame(), Deyo(margin=2.0)])
def test_calibrators_keep_the_labels_of_what_is_said(spec: Method) -> None:
    """Also where that is more than the network's own word: views, a prior, neighbours."""
    alone = spec.attach(small_resnet())
    calibrators = {"softmax": sicl.Softmax(), "pseudocal": sicl.PseudoCal(), "sicl": sicl.SICL()}
    panel = sicl.Panel(calibrators, spec.attach(small_resnet()))
    for images in batches(2):
        logits = alone(images)
        for prediction in panel(images).values():
            assert torch.equal(prediction.labels, logits.argmax(dim=1))
            assert torch.equal(prediction.logits, logits)
            assert bool(((prediction.confidence >= 0) & (prediction.confidence <= 1)).all())
