"""The engine: every way gives the plain loop's votes, in bounded batches, and leaves no trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from calibrate_networks import images, small_net
from torch import Tensor, nn

from sicl import perturb
from sicl.calibrate.sicl.budget import ROUNDS, Settling, standard_error
from sicl.calibrate.sicl.casting import Casting, Kind, shared
from sicl.calibrate.sicl.questions import Engines
from sicl.engine.engine import Engine, EngineOptions
from sicl.engine.graphs import Lanes
from sicl.engine.norms import batch_norms
from sicl.engine.split import Split
from sicl.engine.variants import (
    ContentVariants,
    GivenVariants,
    JoinedVariants,
    StyleVariants,
    Variants,
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


def engine(model: nn.Module, **options: Any) -> Engine:
    """An engine on a network."""
    return Engine(Split(model), EngineOptions(**options))


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
    split = Split(model)
    batch = pictures(len(labels))
    features, _ = split.run(batch)
    hard, soft = [], []
    for variant in made.view(-1, *features.shape):
        logits = split.resume(variant, norm=norm) if norm == "frozen" else hooked(split, batch, variant)
        hard.append((logits.argmax(1) == labels).float())
        soft.append(logits.softmax(1).gather(1, labels[:, None])[:, 0])
    return Votes(torch.stack(hard), torch.stack(soft))


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


@pytest.mark.parametrize("way", ["plain", "twin", "fused"])
@pytest.mark.parametrize("norm", ["batch", "frozen"])
@pytest.mark.parametrize(
    ("name", "batchwise"), [("resnet18", True), ("resnet18", False), ("resnet50", True), ("vit", False)]
)
def test_every_way_gives_the_plain_loops_votes(way: str, norm: str, name: str, batchwise: bool) -> None:
    """In float32 and for the same noise, stacked or not, folded or not."""
    model = network(name, batchwise=batchwise)
    runner = engine(model, engine=way, norm=norm, precision="float32")
    features = runner.begin(pictures(12))
    labels = torch.arange(12) % 5
    for variants in (style_of(features), content_of(features)):
        votes = runner.collect(variants, labels)
        expected = by_hand(model, variants.make(features), labels, norm)
        assert torch.allclose(votes.soft, expected.soft, atol=1e-3)
        assert torch.equal(votes.hard, expected.hard)
    assert runner.name == ("plain" if way == "plain" else f"{way} float32")


@pytest.mark.parametrize("norm", ["batch", "frozen"])
@pytest.mark.parametrize("name", ["resnet18", "vit"])
def test_bfloat16_stays_close(norm: str, name: str) -> None:
    """Rounding moves a vote a little, on every machine."""
    model = network(name, batchwise=name != "vit")
    exact = engine(model, engine="plain", norm=norm)
    rough = engine(model, engine="fused", norm=norm, precision="bfloat16")
    features = exact.begin(pictures(12))
    rough.begin(pictures(12))
    labels = torch.arange(12) % 5
    first = exact.collect(style_of(features), labels).soft
    second = rough.collect(style_of(features), labels).soft
    assert rough.name == "fused bfloat16"
    assert float((first - second).abs().mean()) < 0.02


@pytest.mark.parametrize("way", ["twin", "fused"])
@pytest.mark.parametrize("norm", ["batch", "frozen"])
def test_the_twin_follows_the_network(way: str, norm: str) -> None:
    """After an update in place the next batch is computed with the new parameters and statistics."""
    model = network()
    runner = engine(model, engine=way, norm=norm, precision="float32")
    runner.begin(pictures(12))
    for parameter in model.parameters():
        parameter.mul_(1.1)
    features = runner.begin(pictures(12) * 0.8)
    labels = torch.arange(12) % 5
    plain = engine(model, engine="plain", norm=norm)
    plain.begin(pictures(12) * 0.8)
    variants = style_of(features)
    assert torch.allclose(
        runner.collect(variants, labels).soft, plain.collect(variants, labels).soft, atol=1e-3
    )


def test_a_change_of_norm_mode_makes_a_new_twin() -> None:
    """A network that goes from batch to running statistics is not computed as it was."""
    model = network()
    runner = engine(model, engine="fused", norm="batch", precision="float32")
    runner.begin(pictures(12))
    for norm in batch_norms(model):
        norm.eval()
        norm.track_running_stats = True
    features = runner.begin(pictures(12))
    labels = torch.arange(12) % 5
    variants = style_of(features)
    expected = by_hand(model, variants.make(features), labels, "batch")
    assert torch.allclose(runner.collect(variants, labels).soft, expected.soft, atol=1e-3)


@pytest.mark.parametrize("max_batch", [1, 5, 12, 30, 1000])
@pytest.mark.parametrize("norm", ["batch", "frozen"])
def test_the_size_of_batches_changes_nothing_and_is_bounded(max_batch: int, norm: str) -> None:
    """However variants are packed, votes are the same; more rows than allowed are never sent."""
    model = network()
    runner = engine(model, engine="plain", norm=norm, max_batch=max_batch)
    features = runner.begin(pictures(12))
    sent: list[int] = []
    model.layer2.register_forward_pre_hook(lambda _m, args: sent.append(len(args[0])))
    labels = torch.arange(12) % 5
    variants = content_of(features)
    votes = runner.collect(variants, labels)
    limit = max_batch if norm == "frozen" else max(max_batch, 12)
    assert max(sent) <= limit
    expected = engine(model, engine="plain", norm=norm, max_batch=10**6)
    expected.begin(pictures(12))
    assert torch.allclose(votes.soft, expected.collect(variants, labels).soft, atol=1e-5)


def test_running_out_of_memory_halves_the_batch_and_goes_on() -> None:
    """The chunk that did not fit is computed again, smaller; nothing is lost or counted twice."""
    model = network()
    runner = engine(model, engine="plain", norm="frozen", max_batch=60)
    features = runner.begin(pictures(12))
    labels, variants = torch.arange(12) % 5, style_of(features)
    expected = runner.collect(variants, labels)
    tried: list[int] = []

    def small_memory(_module: nn.Module, args: Any) -> None:
        tried.append(len(args[0]))
        if len(args[0]) > 10:
            raise RuntimeError("CUDA out of memory. Tried to allocate")

    model.layer3.register_forward_pre_hook(small_memory)
    votes = runner.collect(variants, labels)
    assert torch.allclose(votes.soft, expected.soft, atol=1e-5)
    assert votes.soft.shape == (5, 12)
    assert tried[:4] == [60, 24, 12, 6]
    assert max(tried[4:]) <= 10


def test_other_errors_are_raised_as_they_are() -> None:
    """Only memory is a reason to try again."""
    model = network()
    runner = engine(model, engine="plain", norm="frozen")
    features = runner.begin(pictures(12))

    def broken(*_: Any) -> None:
        raise RuntimeError("something else")

    model.layer3.register_forward_pre_hook(broken)
    with pytest.raises(RuntimeError, match="something else"):
        runner.collect(style_of(features), torch.zeros(12, dtype=torch.long))


def test_memory_bounds_the_rows() -> None:
    """With `max_memory` and no `max_batch` the rows follow from the features' size."""
    runner = engine(network(), norm="frozen", engine="plain", max_memory=40 * 4 * 4 * 16 * 16 * 4 / 2**30)
    runner.begin(pictures(12))
    assert runner._rows_at_once() == 40
    assert runner._variants_at_once(20, 12) == 2


@pytest.mark.parametrize("kind", ["style", "content", "given", "joined"])
def test_variants_of_parts_and_rows_are_those_of_the_whole(kind: str) -> None:
    """Cutting a description and making it gives what making and cutting it gives."""
    features = torch.randn(6, 3, 4, 4)
    all_of: dict[str, Variants] = {
        "style": style_of(features),
        "content": content_of(features),
        "given": GivenVariants(torch.randn(5, 6, 3, 4, 4)),
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


def test_a_mirrored_view_votes_like_the_network_itself() -> None:
    """Another view of the batch is one more variant."""
    model = network(batchwise=False)
    batch = pictures(12)
    labels = model(batch).argmax(1)
    expected = model(batch.flip(-1)).softmax(1).gather(1, labels[:, None])[:, 0]
    for way in ("plain", "fused"):
        runner = engine(model, engine=way, norm="frozen", precision="float32")
        runner.begin(batch)
        votes = runner.collect(runner.view(batch.flip(-1)), labels)
        assert torch.allclose(votes.soft[0], expected, atol=1e-4)


def test_a_network_that_cannot_be_copied_runs_plainly_and_says_why() -> None:
    """The fast ways are accelerators: without them everything still works."""

    class Uncopyable(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = small_net()

        def __deepcopy__(self, memo: Any) -> nn.Module:
            raise RuntimeError("no copies, please")

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.inner(x)
            return out

    runner = engine(Uncopyable().eval())
    features = runner.begin(images(12))
    runner.collect(style_of(features), torch.zeros(12, dtype=torch.long))
    assert runner.name == "plain"
    assert "no copies, please" in runner.reason


@pytest.mark.parametrize("norm", ["batch", "frozen"])
@pytest.mark.parametrize("way", ["plain", "fused"])
def test_kinds_of_one_engine_vote_together_as_they_would_alone(way: str, norm: str) -> None:
    """One pass, by the variants that each would have drawn; a kind that is not asked draws none."""
    runner = engine(network(), engine=way, norm=norm, precision="float32")
    features = runner.begin(pictures(12))
    labels, view = torch.arange(12) % 5, runner.view(pictures(12).flip(-1))
    drawn = {"style": style_of(features), "content": content_of(features), "mirror": view}
    alone = {name: runner.collect(variants, labels) for name, variants in drawn.items()}
    kinds = {name: Kind(runner, lambda _n, v=v: v) for name, v in drawn.items()}
    engines, lanes = Engines(runner, runner, runner), Lanes(torch.device("cpu"))
    cast, sent = Casting(engines, kinds, labels, lanes), runner.rows_sent
    found = cast({"style": 5, "content": 5, "mirror": 1})
    assert runner.rows_sent - sent == 11 * 12
    for name, votes in found.items():
        assert torch.allclose(votes.soft, alone[name].soft, atol=1e-4)
    assert list(cast({"content": 5, "style": 0})) == ["content"]


@pytest.mark.parametrize(("share", "others"), [(0.25, 2), (0.5, 4), (1.0, 8)])
def test_two_share_the_votes(share: float, others: int) -> None:
    """The second casts its share of every kind, the first the rest."""

    def cast(value: float) -> Any:
        return lambda counts: {
            k: Votes(torch.full((n, 3), value), torch.ones(n, 3)) for k, n in counts.items() if n
        }

    votes = shared(cast(0.0), cast(1.0), share)({"style": 8, "content": 4})
    assert float(votes["style"].hard.sum()) == 3 * others
    assert {name: len(v.hard) for name, v in votes.items()} == {"style": 8, "content": 4}


@pytest.mark.parametrize(
    "wrong", [{"engine": "warp"}, {"precision": "int4"}, {"max_memory": 0.0}, {"max_batch": -1}]
)
def test_wrong_options_are_refused(wrong: dict[str, Any]) -> None:
    """Values are checked when the options are made."""
    with pytest.raises(OptionError, match=next(iter(wrong))):
        EngineOptions(**wrong)


@pytest.mark.parametrize("norm", ["batch", "frozen"])
@pytest.mark.parametrize(("settled", "spent"), [(1.0, [4]), (1e-9, [4, 4, 12])])
def test_a_batch_stops_when_it_has_settled(norm: str, settled: float, spent: list[int]) -> None:
    """A calm batch gets four variants, an undecided one all twenty, and the mean is over what was spent."""
    runner = engine(network(), engine="plain", norm=norm)
    features = runner.begin(pictures(12))
    pool = style_of(features, 20)
    taken: list[int] = []

    labels = torch.arange(12) % 5

    def cast(counts: Mapping[str, int]) -> dict[str, Votes]:
        taken.append(counts["style"])
        return {"style": runner.collect(pool.part(sum(taken) - taken[-1], sum(taken)), labels)}

    settling = Settling(cast, cast({"style": ROUNDS[0]}), "soft", settled=settled)
    shares = settling.finish()["style"]
    assert taken == spent
    expected = runner.collect(pool.part(0, sum(spent)), labels).soft.mean(0)
    assert torch.allclose(shares, expected, atol=1e-5)


def test_the_standard_error_is_that_of_a_mean() -> None:
    """By hand: two samples, one calm."""
    votes = torch.tensor([[0.0, 0.5], [1.0, 0.5]])
    assert float(standard_error(votes)) == pytest.approx((0.25 / 2) ** 0.5)
