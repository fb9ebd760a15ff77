"""The engine: every way gives the plain loop's votes, in bounded batches, and leaves no trace."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from engine_networks import build
from torch import Tensor, nn

from sicl import perturb
from sicl.engine.engine import Engine, EngineOptions
from sicl.engine.norms import batch_norms
from sicl.engine.split import Split
from sicl.engine.variants import (
    ContentVariants,
    GivenVariants,
    JoinedVariants,
    StyleVariants,
    Variants,
    ViewVariants,
    Votes,
)
from sicl.errors import OptionError
from sicl.models.cifar import resnet18, resnet50
from sicl.models.vit import VisionTransformer


def network(name: str = "resnet18", *, batchwise: bool = True) -> nn.Module:
    """A small network with random weights, its norms on batch or running statistics."""
    state = torch.get_rng_state()
    torch.manual_seed(1)
    if name == "vit":
        model: nn.Module = VisionTransformer(
            image_size=16, patch=4, dim=12, depth=2, n_heads=2, n_classes=5, mean=(0.5,) * 3, std=(0.3,) * 3
        )
    else:
        model = {"resnet18": resnet18, "resnet50": resnet50}[name](width=4, n_classes=5)
    torch.set_rng_state(state)
    model.eval().requires_grad_(False)
    for norm in batch_norms(model):
        norm.weight.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(2))
        norm.train(batchwise)
        norm.track_running_stats = not batchwise
    return model


def pictures(n: int) -> Tensor:
    """Random 16-pixel images."""
    return torch.rand(n, 3, 16, 16, generator=torch.Generator().manual_seed(5))


def engine(model: nn.Module, *, norm: str = "batch", **options: Any) -> Engine:
    """An engine on a network."""
    statistics: Any = "frozen" if norm == "frozen" else None
    return Engine(Split(model, statistics=statistics), EngineOptions(**options))


def style_of(features: Tensor, n: int = 5) -> StyleVariants:
    """Style variants with fixed noise."""
    mean, std = perturb.style_statistics(features)
    e = 0.5 * torch.randn((2, n, *mean.shape), generator=torch.Generator().manual_seed(3))
    return StyleVariants(*perturb.style_map(mean, std, e[0], e[1]))


def content_of(features: Tensor, n: int = 5) -> ContentVariants:
    """Content variants with fixed noise."""
    length = perturb.block_length(features)
    blocks = torch.randn((n, length), generator=torch.Generator().manual_seed(4))
    return ContentVariants(perturb.style_statistics(features)[1], blocks)


def by_hand(model: nn.Module, made: Tensor, labels: Tensor, norm: str) -> Votes:
    """The plain loop: a hook, one whole pass a variant, in float32."""
    split = Split(model, statistics="frozen")
    batch = pictures(len(labels))
    begun = split.run(batch)
    parts = []
    for variant in made.view(-1, *begun.features.shape):
        logits = split.resume(variant, begun) if norm == "frozen" else hooked(split, batch, variant)
        p = logits.softmax(1)
        soft = p.gather(1, labels[:, None])[:, 0]
        parts.append(((logits.argmax(1) == labels).float(), soft, -(p * p.log()).sum(1), p.sum(0)))
    return Votes(*map(torch.stack, zip(*parts)))


def hooked(split: Split, batch: Tensor, variant: Tensor) -> Tensor:
    """A whole pass with the layer's output replaced."""
    module = split.network.get_submodule(split.point.name)
    if split.point.side == "output":
        handle = module.register_forward_hook(lambda *_: variant)
    else:
        handle = module.register_forward_pre_hook(lambda _m, args: (variant, *args[1:]))
    try:
        out: Tensor = split.network(batch)
        return out
    finally:
        handle.remove()


@pytest.mark.parametrize("level", ["plain", "twin", "traced"])
@pytest.mark.parametrize("norm", ["batch", "frozen"])
@pytest.mark.parametrize(
    ("name", "batchwise"), [("resnet18", True), ("resnet18", False), ("resnet50", True), ("vit", False)]
)
def test_every_level_gives_the_plain_loops_votes(level: str, norm: str, name: str, batchwise: bool) -> None:
    """In float32 and for the same noise, stacked or not, folded or not."""
    model = network(name, batchwise=batchwise)
    runner = engine(model, engine=level, norm=norm, precision="float32")
    begun = runner.begin(pictures(12))
    labels = torch.arange(12) % 5
    for variants in (style_of(begun.features), content_of(begun.features)):
        votes = runner.votes(begun, variants, labels)
        expected = by_hand(model, variants.make(begun.features), labels, norm)
        assert torch.allclose(votes.soft, expected.soft, atol=1e-3)
        assert torch.equal(votes.hard, expected.hard)
    assert runner.name == ("plain" if level == "plain" else f"{level} float32")


@pytest.mark.parametrize("level", ["twin", "traced"])
@pytest.mark.parametrize("norm", ["batch", "frozen"])
def test_norms_of_one_network_may_use_different_statistics(level: str, norm: str) -> None:
    """Some by the batch's, some by running ones that are folded: the pass that records must have both right."""
    model, labels = network(), torch.arange(12) % 5
    for layer in batch_norms(model)[::2]:
        layer.train(False)
        layer.track_running_stats = True
        layer.running_mean.normal_(0, 0.3, generator=torch.Generator().manual_seed(6))
    runner = engine(model, engine=level, norm=norm, precision="float32")
    plain = engine(model, engine="plain", norm=norm)
    begun, expected = runner.begin(pictures(12)), plain.begin(pictures(12))
    variants = style_of(begun.features)
    found = runner.votes(begun, variants, labels).soft
    assert torch.allclose(found, plain.votes(expected, variants, labels).soft, atol=1e-3)
    assert runner.name == f"{level} float32"


@pytest.mark.parametrize("norm", ["batch", "frozen"])
@pytest.mark.parametrize("name", ["resnet18", "vit"])
def test_bfloat16_stays_close(norm: str, name: str) -> None:
    """Rounding moves a vote a little, on every machine."""
    model = network(name, batchwise=name != "vit")
    exact = engine(model, engine="plain", norm=norm)
    rough = engine(model, engine="traced", norm=norm, precision="bfloat16")
    begun, low = exact.begin(pictures(12)), rough.begin(pictures(12))
    labels, variants = torch.arange(12) % 5, style_of(begun.features)
    first = exact.votes(begun, variants, labels).soft
    second = rough.votes(low, variants, labels).soft
    assert rough.name == "traced bfloat16"
    assert float((first - second).abs().mean()) < 0.02


@pytest.mark.parametrize("level", ["twin", "traced"])
@pytest.mark.parametrize("norm", ["batch", "frozen"])
def test_the_twin_follows_the_network(level: str, norm: str) -> None:
    """After an update in place the next batch is computed with the new parameters and statistics."""
    model = network()
    runner = engine(model, engine=level, norm=norm, precision="float32")
    labels = torch.arange(12) % 5
    before = runner.begin(pictures(12))
    runner.votes(before, style_of(before.features), labels)
    for parameter in model.parameters():
        parameter.mul_(1.1)
    begun = runner.begin(pictures(12) * 0.8)
    plain = engine(model, engine="plain", norm=norm)
    expected = plain.votes(plain.begin(pictures(12) * 0.8), style_of(begun.features), labels)
    assert torch.allclose(
        runner.votes(begun, style_of(begun.features), labels).soft, expected.soft, atol=1e-3
    )


@pytest.mark.parametrize("level", ["plain", "twin", "traced"])
@pytest.mark.parametrize("norm", ["batch", "frozen"])
def test_a_begun_batch_is_a_value(level: str, norm: str) -> None:
    """Beginning another batch, of another size, changes nothing about votes on the first."""
    runner = engine(network(), engine=level, norm=norm, precision="float32")
    labels = torch.arange(12) % 5
    begun = runner.begin(pictures(12))
    variants = style_of(begun.features)
    expected, logits = runner.votes(begun, variants, labels), runner.logits(begun)
    other = runner.begin(pictures(7) * 0.5)
    runner.votes(other, style_of(other.features), labels[:7])
    again = runner.votes(begun, variants, labels)
    assert torch.equal(again.soft, expected.soft)
    assert torch.equal(runner.logits(begun), logits)


@pytest.mark.parametrize("level", ["plain", "twin", "traced"])
@pytest.mark.parametrize("norm", ["batch", "frozen"])
def test_only_labelled_rows_are_voted_on(level: str, norm: str) -> None:
    """Rows beyond the labels share the batch's statistics and have no votes."""
    runner = engine(network(), engine=level, norm=norm, precision="float32")
    begun, labels = runner.begin(pictures(12)), torch.arange(12) % 5
    variants = style_of(begun.features)
    all_of = runner.votes(begun, variants, labels)
    some = runner.votes(begun, variants, labels[:3])
    assert some.soft.shape == (5, 3)
    assert torch.allclose(some.soft, all_of.soft[:, :3], atol=1e-6)


@pytest.mark.parametrize("level", ["twin", "traced"])
@pytest.mark.parametrize("batchwise", [False, True])
def test_norms_with_an_activation_have_a_twin(level: str, batchwise: bool) -> None:
    """A subclass that normalises by torch's `batch_norm` and then does more gets the fast path."""
    from test_norms import NormAct

    model = build("vgg")
    model[0][5] = NormAct(8).eval()
    for norm in batch_norms(model):
        norm.train(batchwise)
    runner = engine(model, engine=level, precision="float32")
    plain = engine(model, engine="plain")
    labels = torch.arange(12) % 5
    begun = runner.begin(pictures(12))
    variants = style_of(begun.features)
    found = runner.votes(begun, variants, labels)
    assert runner.name == f"{level} float32"
    expected = plain.votes(plain.begin(pictures(12)), variants, labels)
    assert torch.allclose(found.soft, expected.soft, atol=1e-4)


def test_a_change_of_norm_mode_makes_a_new_twin() -> None:
    """A network that goes from batch to running statistics is not computed as it was."""
    model = network()
    runner = engine(model, engine="traced", norm="batch", precision="float32")
    runner.begin(pictures(12))
    for norm in batch_norms(model):
        norm.eval()
        norm.track_running_stats = True
    begun = runner.begin(pictures(12))
    labels = torch.arange(12) % 5
    variants = style_of(begun.features)
    expected = by_hand(model, variants.make(begun.features), labels, "batch")
    assert torch.allclose(runner.votes(begun, variants, labels).soft, expected.soft, atol=1e-3)


@pytest.mark.parametrize("max_batch", [1, 5, 12, 30, 1000])
@pytest.mark.parametrize("norm", ["batch", "frozen"])
def test_the_size_of_batches_changes_nothing_and_is_bounded(max_batch: int, norm: str) -> None:
    """However variants are packed, votes are the same; more rows than allowed are never sent."""
    model = network()
    runner = engine(model, engine="plain", norm=norm, max_batch=max_batch)
    begun = runner.begin(pictures(12))
    sent: list[int] = []
    model.layer2.register_forward_pre_hook(lambda _m, args: sent.append(len(args[0])))
    labels = torch.arange(12) % 5
    variants = content_of(begun.features)
    votes = runner.votes(begun, variants, labels)
    limit = max_batch if norm == "frozen" else max(max_batch, 12)
    assert max(sent) <= limit
    expected = engine(model, engine="plain", norm=norm, max_batch=10**6)
    begun = expected.begin(pictures(12))
    assert torch.allclose(votes.soft, expected.votes(begun, variants, labels).soft, atol=1e-5)


def test_running_out_of_memory_halves_the_batch_and_goes_on() -> None:
    """The chunk that did not fit is computed again, smaller; nothing is lost or counted twice."""
    model = network()
    runner = engine(model, engine="plain", norm="frozen", max_batch=60)
    begun = runner.begin(pictures(12))
    labels, variants = torch.arange(12) % 5, style_of(begun.features)
    expected = runner.votes(begun, variants, labels)
    tried: list[int] = []

    def small_memory(_module: nn.Module, args: Any) -> None:
        tried.append(len(args[0]))
        if len(args[0]) > 10:
            raise RuntimeError("CUDA out of memory. Tried to allocate")

    model.layer3.register_forward_pre_hook(small_memory)
    votes = runner.votes(begun, variants, labels)
    assert torch.allclose(votes.soft, expected.soft, atol=1e-5)
    assert votes.soft.shape == (5, 12)
    assert tried[:4] == [60, 24, 12, 6]
    assert max(tried[4:]) <= 10


def test_other_errors_are_raised_as_they_are() -> None:
    """Only memory is a reason to try again."""
    model = network()
    runner = engine(model, engine="plain", norm="frozen")
    begun = runner.begin(pictures(12))

    def broken(*_: Any) -> None:
        raise RuntimeError("something else")

    model.layer3.register_forward_pre_hook(broken)
    with pytest.raises(RuntimeError, match="something else"):
        runner.votes(begun, style_of(begun.features), torch.zeros(12, dtype=torch.long))


def test_memory_bounds_the_rows() -> None:
    """With `max_memory` and no `max_batch` the rows follow from the features' size."""
    runner = engine(network(), norm="frozen", engine="plain", max_memory=40 * 4 * 4 * 16 * 16 * 4 / 2**30)
    runner.begin(pictures(12))
    assert runner._rows_at_once() == 40
    assert runner._variants_at_once(20, 12) == 2


@pytest.mark.parametrize("kind", ["style", "content", "given", "views", "joined"])
def test_variants_of_parts_and_rows_are_those_of_the_whole(kind: str) -> None:
    """Cutting a description and making it gives what making and cutting it gives."""
    features = torch.randn(6, 3, 4, 4)
    all_of: dict[str, Variants] = {
        "style": style_of(features),
        "content": content_of(features),
        "given": GivenVariants(torch.randn(5, 6, 3, 4, 4)),
        "views": ViewVariants(tuple(torch.randn(5, 6, 3, 4, 4)), _copied),
        "joined": JoinedVariants((style_of(features, 2), GivenVariants(torch.randn(3, 6, 3, 4, 4)))),
    }
    variants, rows = all_of[kind], torch.tensor([5, 0, 2])
    whole = variants.make(features).view(5, 6, 3, 4, 4)
    assert torch.equal(variants.part(1, 4).make(features).view(3, 6, 3, 4, 4), whole[1:4])
    chosen = variants.of_rows(rows)
    assert torch.equal(chosen.make(features[rows]).view(5, 3, 3, 4, 4), whole[:, rows])
    assert torch.equal(
        chosen.with_tensors(chosen.tensors()).make(features[rows]), chosen.make(features[rows])
    )


def _copied(views: tuple[Tensor, ...], out: Tensor) -> None:
    """Nothing comes before the cut."""
    out.copy_(torch.cat(views))


def test_a_mirrored_view_votes_like_the_network_itself() -> None:
    """Another view of the batch is one more variant."""
    model = network(batchwise=False)
    batch = pictures(12)
    labels = model(batch).argmax(1)
    expected = model(batch.flip(-1)).softmax(1).gather(1, labels[:, None])[:, 0]
    for level in ("plain", "traced"):
        runner = engine(model, engine=level, norm="frozen", precision="float32")
        votes = runner.votes(runner.begin(batch), runner.view(batch.flip(-1)), labels)
        assert torch.allclose(votes.soft[0], expected, atol=1e-4)


def test_a_network_that_cannot_be_copied_runs_plainly_and_says_why() -> None:
    """The fast ways are accelerators: without them everything still works."""

    class Uncopyable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = build("resnet18")

        def __deepcopy__(self, memo: Any) -> nn.Module:
            raise RuntimeError("no copies, please")

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            return out

    runner = engine(Uncopyable().eval())
    begun = runner.begin(pictures(12))
    runner.votes(begun, style_of(begun.features), torch.zeros(12, dtype=torch.long))
    assert runner.name == "plain"
    assert "no copies, please" in runner.reason


@pytest.mark.parametrize(
    "wrong", [{"engine": "warp"}, {"precision": "int4"}, {"max_memory": 0.0}, {"max_batch": -1}]
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    """Values are checked when the options are made."""
    with pytest.raises(OptionError, match=next(iter(wrong))):
        EngineOptions(**wrong)


def test_the_older_name_of_a_level_is_understood() -> None:
    """Records and plans may say "fused"."""
    assert EngineOptions(engine="fused").level == "traced"


class Bypassed(nn.Module):
    """Something of the images reaches the logits past the cut."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = build("resnet18")

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.inner(images)
        return logits + images[:, :, :, :2].mean(dim=(1, 2, 3)).view(-1, 1) * torch.arange(5.0)


@pytest.mark.filterwarnings("ignore:.*cannot be resumed")
def test_a_bypassed_cut_is_asked_about_other_images_by_whole_passes() -> None:
    """A view's vote is the network's own probability for its images, also beside other variants."""
    model = Bypassed().eval()
    runner = engine(model)
    begun, labels = runner.begin(pictures(12)), torch.arange(12) % 5
    style = style_of(begun.features, 2)
    views = (pictures(12).flip(-1), 1 - pictures(12))
    votes = runner.votes(begun, JoinedVariants((style, runner.view(*views))), labels)
    for found, view in zip(votes.soft[2:], views):
        with torch.no_grad():
            expected = model(view).softmax(dim=1).gather(1, labels[:, None])[:, 0]
        assert torch.allclose(found, expected, atol=1e-5)
    assert torch.allclose(votes.soft[:2], runner.votes(begun, style, labels).soft, atol=1e-5)


def _batchwise(model: nn.Module) -> nn.Module:
    for norm in batch_norms(model):
        norm.train().track_running_stats = False
        norm.running_mean = norm.running_var = None
    return model


@pytest.mark.parametrize("level", ["plain", "twin", "traced"])
@pytest.mark.parametrize("norm", ["batch", "frozen"])
@pytest.mark.parametrize("prepare", [nn.Module.eval, _batchwise])
def test_an_engine_gives_the_networks_logits(level: str, norm: str, prepare: Any) -> None:
    """Of the batch it has begun, and of another view where statistics do not depend on the batch."""
    model = prepare(build("resnet18"))
    runner = engine(model, engine=level, norm=norm, precision="float32")
    with torch.no_grad():
        begun = runner.begin(pictures(12))
        torch.testing.assert_close(runner.logits(begun), model(pictures(12)), atol=1e-4, rtol=1e-4)
        if norm == "batch" or not runner.split.batch_dependent():
            view = pictures(12).flip(-1)
            found = runner.logits(begun, runner.view(view))
            torch.testing.assert_close(found[0], model(view), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_prepared_engine_is_one_of_the_network_as_it_then_stands(precision: Any) -> None:
    """What is copied before there are images shares tensors until the first batch, and none after it."""
    model, batch = network(batchwise=False), pictures(6)
    ready, fresh = (engine(model, engine="twin", precision=precision) for _ in range(2))
    ready.prepare()
    model.requires_grad_(True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)
    for buffers in (module._buffers for module in model.modules()):
        buffers.update({name: None if value is None else value.clone() for name, value in buffers.items()})
    begun = [one.begin(batch) for one in (ready, fresh)]
    assert ready.name == fresh.name == f"twin {precision}"
    assert torch.equal(ready.logits(begun[0]), fresh.logits(begun[1]))
    assert ready._passes is not None
    twin = ready._passes.twin.network
    mine = {tensor.data_ptr() for tensor in model.state_dict().values()}
    assert not mine & {tensor.data_ptr() for tensor in twin.state_dict().values()}
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert not any(parameter.requires_grad for parameter in twin.parameters())


def test_a_first_batch_waits_for_three_passes_of_the_network() -> None:
    """Stubs, the two laws, and what the twin is compared with: a first picture costs little more than others."""
    model, calls = network(batchwise=False), [0]

    def note(_module: nn.Module, _args: Any, _output: Any) -> None:
        calls[0] += 1

    model.get_submodule("fc").register_forward_hook(note)
    one = engine(model, engine="twin")
    one.prepare()
    calls[0] = 0
    one.begin(pictures(1))
    # The copy has the hook too: its only pass is the comparison.
    assert calls[0] == 4


def test_what_does_not_run_in_16_bits_is_resumed_as_it_is() -> None:
    """Found on the first batch, and said."""

    class Strict(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if x.dtype != torch.float32:
                raise TypeError("float32 only")
            return super().forward(x)

    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), Strict(4 * 14 * 14, 8), nn.ReLU(), nn.Linear(8, 3)
    )
    one = Engine(Split(model.eval(), "0"), EngineOptions(engine="twin", precision="bfloat16"))
    one.begin(pictures(4))
    assert one.name == "plain"
    assert "does not run in torch.bfloat16 (float32 only)" in one.reason
