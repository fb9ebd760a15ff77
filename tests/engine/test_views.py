"""Views of a batch: through the part before the cut together, each as if it came alone, and within the memory bound."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sicl.engine.engine import GIB, Engine, EngineOptions
from sicl.engine.norms import batch_norms
from sicl.engine.split import Split
from sicl.engine.variants import StyleVariants, together
from sicl.models.cifar import resnet18
from sicl.models.vit import VisionTransformer

LABELS = torch.arange(12) % 5


class Centred(nn.Module):
    """Takes the batch's mean away: images depend on each other, and no norm says so."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(dim=0, keepdim=True)


class Doubling(nn.BatchNorm2d):
    """A batch norm whose forward is not understood."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * torch.batch_norm(  # type: ignore[no-untyped-call, no-any-return]
            input, self.weight, self.bias, None, None, True, 0.0, self.eps, False
        )


def network(name: str) -> nn.Module:
    """A small network with random weights."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        half = (0.5,) * 3
        if name == "layer norm":
            size = {"image_size": 16, "patch": 4, "dim": 12, "depth": 2, "n_heads": 2}
            return VisionTransformer(**size, n_classes=5, mean=half, std=half).eval()  # type: ignore[arg-type]
        if name in ("running", "batch"):
            model = resnet18(width=16, n_classes=5).eval()
            for norm in batch_norms(model):
                norm.weight.data.uniform_(0.5, 1.5)
                norm.train(name == "batch").track_running_stats = name == "running"
            return model
        norm = {"group norm": nn.GroupNorm(2, 6), "centred": Centred(), "own": Doubling(6).train()}[name]
        head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))
        return nn.Sequential(nn.Conv2d(3, 6, 3), norm, nn.ReLU(), nn.Conv2d(6, 6, 3), head).eval()


def engine(name: str, **options: Any) -> Engine:
    """An engine on a network, cut after its first norm."""
    layer = "2" if name in ("group norm", "centred", "own") else "auto"
    model = network(name)
    if name == "own":
        model[1].train()  # type: ignore[index]
    statistics = options.pop("statistics", None)
    return Engine(
        Split(model, layer, statistics=statistics), EngineOptions(**{"precision": "float32", **options})
    )


def views(n: int = 12) -> tuple[Tensor, ...]:
    """A batch and four views of it that differ in brightness, so that their statistics do."""
    batch = torch.rand(n, 3, 16, 16, generator=torch.Generator().manual_seed(5))
    return (batch, batch.flip(-1), batch / 2, batch.square(), 1 - batch)


def style() -> StyleVariants:
    """Two style variants."""
    return StyleVariants(torch.full((2, 12, 16), 1.1), torch.full((2, 12, 16), 0.1))


def watched(runner: Engine) -> list[int]:
    """The rows that go through the first convolution from now on; stubs, which are given NaN, do not count."""
    sent: list[int] = []

    def note(_module: nn.Module, args: tuple[Tensor, ...]) -> None:
        if not args[0].isnan().any():
            sent.append(len(args[0]))

    layer = next(m for m in runner.split.network.modules() if isinstance(m, nn.Conv2d))
    layer.register_forward_pre_hook(note)
    return sent


@pytest.mark.parametrize("level", ["plain", "twin", "traced"])
@pytest.mark.parametrize(
    ("name", "passes"),
    [("running", 1), ("batch", 1), ("layer norm", 1), ("group norm", 1), ("centred", 4), ("own", 4)],
)
def test_views_vote_together_as_each_would_alone(name: str, passes: int, level: Any) -> None:
    """By one pass through the part before the cut; one by one where something there mixes the images."""
    runner = engine(name, engine=level)
    batch, *others = views()
    begun = runner.begin(batch)
    alone = [runner.votes(begun, runner.view(view), LABELS).soft[0] for view in others]
    sent = watched(runner)
    votes = runner.votes(begun, runner.view(*others), LABELS)
    assert sent == [48 // passes] * passes
    torch.testing.assert_close(votes.soft, torch.stack(alone), atol=1e-6, rtol=1e-5)
    with torch.no_grad():
        expected = [runner.split.network(view).softmax(1).gather(1, LABELS[:, None])[:, 0] for view in others]
    torch.testing.assert_close(votes.soft, torch.stack(expected), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("statistics", ["running", "batch", "frozen"])
@pytest.mark.parametrize("max_batch", [5, 24, 1000])
def test_views_are_packed_like_other_variants(statistics: Any, max_batch: int) -> None:
    """However many rows go at once, votes are those of all at once, and no buffer is written."""
    batch, *others = views()
    found = []
    for rows in (max_batch, 1000):
        runner = engine("batch", engine="plain", statistics=statistics, max_batch=rows)
        for norm in batch_norms(runner.split.network):
            norm.track_running_stats = True
        before = {name: value.clone() for name, value in runner.split.network.state_dict().items()}
        begun = runner.begin(batch)
        variants = together([runner.view(*others[:1]), runner.view(*others[1:]), style()])
        found.append(runner.votes(begun, variants, LABELS).soft)
        for name, value in runner.split.network.state_dict().items():
            assert torch.equal(value, before[name])
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-5)


def test_neighbouring_views_become_one_kind() -> None:
    """Votes keep their order, whatever stands between."""
    runner = engine("batch")
    batch, a, b, c, _ = views()
    begun = runner.begin(batch)
    joined = together([runner.view(a), runner.view(b), style(), runner.view(c)])
    assert [len(kind) for kind in joined.kinds] == [2, 2, 1]  # type: ignore[attr-defined]
    found = runner.votes(begun, joined, LABELS).soft[[0, 1, 4]]
    torch.testing.assert_close(found, runner.votes(begun, runner.view(a, b, c), LABELS).soft)


def test_views_that_do_not_fit_go_before_the_cut_one_by_one() -> None:
    """Where that part is wider than what follows, as at the first convolution of large images."""
    sizes = {}
    for max_memory in (1.0, 5e-3):
        model = nn.Sequential(nn.Conv2d(3, 64, 3), nn.MaxPool2d(8), nn.Conv2d(64, 8, 1), nn.Flatten())
        model = nn.Sequential(*model, nn.Linear(8, 5)).eval()
        runner = Engine(Split(model, "1"), EngineOptions(engine="plain", max_memory=max_memory))
        batch, *others = views()
        begun = runner.begin(batch)
        sizes[max_memory] = watched(runner)
        runner.votes(begun, runner.view(*others), LABELS)
    assert sizes == {1.0: [48], 5e-3: [12] * 4}


class Live(TorchDispatchMode):
    """Counts the bytes of tensors made while it is on that are alive at once: `peak` is the most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in tree_leaves((args, kwargs)):
            if isinstance(tensor, Tensor):
                self._known.add(tensor.untyped_storage()._cdata)
        out = func(*args, **kwargs)
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self._known:
                self._take(tensor.untyped_storage())
        return out

    def _take(self, storage: Any) -> None:
        size = storage.nbytes()
        self._known.add(storage._cdata)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, storage._cdata, size)

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


@pytest.mark.parametrize("layer", ["stem", "auto"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("statistics", [None, "batch", "frozen"])
def test_the_memory_bound_holds_with_views(layer: str, precision: Any, statistics: Any) -> None:
    """All tensors alive at once: the clean batch, views, their features and what resuming them takes."""
    max_memory = 6e-3
    options = EngineOptions(engine="traced", precision=precision, max_memory=max_memory)
    runner = Engine(Split(network("running"), layer, statistics=statistics), options)
    batch, *others = views()
    for _ in range(2):
        # What is traced and kept is no part of the bound.
        with Live() as live:
            begun = runner.begin(batch)
            seen = runner.view(*(view.clone() for view in others * 10))
            runner.votes(begun, together([seen, style()]), LABELS)
    # Their features alone, held all at once, would take more.
    assert 42 * begun.base.nbytes > 0.5 * max_memory * GIB
    # A CPU's kernels copy what a GPU's do not.
    assert live.peak < 1.2 * max_memory * GIB
