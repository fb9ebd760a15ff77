"""Every engine gives the votes of the plain one on a CUDA device, while the network adapts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import sicl
from sicl.corruptions import corrupt
from sicl.data import load_dataset
from sicl.models.cifar import resnet18

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("exact_convolutions"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def confidences(n_batches: int = 4, **changes: Any) -> tuple[torch.Tensor, list[str]]:
    """Confidence of a few batches of real images under TENT, and the engines that gave it."""
    spec = sicl.SICL(**{"variants": 6, "content_variants": 6, **changes})
    trusted = spec.attach(sicl.Tent().attach(sicl.load_model("demo", device="cuda")))
    data = load_dataset("demo")
    out, names = [], []
    for i in range(n_batches):
        pixels = torch.from_numpy(data.images[48 * i : 48 * (i + 1)].copy())
        out.append(trusted(pixels.permute(0, 3, 1, 2).float().div(255).cuda()).confidence)
        names.append(trusted.calibration.engine.name)
    return torch.cat(out), names


@pytest.mark.parametrize("engine", ["twin", "traced", "graph", "auto"])
@pytest.mark.parametrize("norm", ["batch", "frozen"])
def test_float32_engines_vote_as_the_plain_one(engine: str, norm: str) -> None:
    """Same noise, same votes, also after the network moved and once graphs are replayed."""
    expected, _ = confidences(engine="plain", norm=norm)
    found, names = confidences(engine=engine, norm=norm, precision="float32")
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=0)
    wanted = {"auto": "graph"}.get(engine, engine)
    assert names[-1] == f"{wanted} float32"


@pytest.mark.parametrize("norm", ["batch", "frozen"])
def test_bfloat16_graphs_are_close_and_reproducible(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default precision changes little; with deterministic convolutions a seed gives the same bits."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    expected, _ = confidences(engine="plain", norm=norm)
    found, names = confidences(norm=norm)
    again, _ = confidences(norm=norm)
    assert names[-1] == "graph bfloat16"
    assert float((found - expected).abs().mean()) < 0.01
    assert torch.equal(found, again)


@pytest.mark.parametrize("method", [sicl.Tent(predict="after"), sicl.Sar(), sicl.Eata(fisher_alpha=0.0)])
@pytest.mark.parametrize("budget", [{}, {"variants": "adaptive"}])
def test_a_whole_poll_is_one_graph_with_the_plain_votes(method: sicl.Tent, budget: dict[str, Any]) -> None:
    """While a network adapts: the votes and signals of the plain way, and the same again after a reset."""
    specs = {name: sicl.SICL(precision="float32", engine=name, **budget) for name in ("auto", "plain")}
    panel = sicl.Panel(specs, method.attach(sicl.load_model("demo", device="cuda")))
    data = load_dataset("demo")
    pixels = torch.from_numpy(data.images[: 9 * 48].copy()).permute(0, 3, 1, 2).float().div(255).cuda()
    for _ in range(2):
        for batch in pixels.split(48):
            out = panel(batch)
            found, expected = out["auto"], out["plain"]
            torch.testing.assert_close(found.confidence, expected.confidence, atol=2e-3, rtol=0)
            assert found.signals.keys() == expected.signals.keys()
        captures = panel.calibrations["auto"].poll.captures
        assert (captures.captured, captures.problem) == (1, "")
        panel.reset()


@pytest.mark.parametrize("members", [("style", "mirror"), ("softmax", "mirror", "crop", "style", "content")])
@pytest.mark.parametrize("variants", [6, "adaptive"])
def test_sizes_that_come_and_go_are_followed(members: tuple[str, ...], variants: int | str) -> None:
    """Batches and images of several sizes in turn: votes as without graphs, whatever was captured for others."""
    specs = {
        n: sicl.SICL(precision="float32", engine=n, members=members, variants=variants, content_variants=6)
        for n in ("auto", "plain")
    }
    model = sicl.load_model("demo", device="cuda")
    model.preprocess = None  # type: ignore[assignment]
    panel = sicl.Panel(specs, sicl.Tent(lr=1e-4).attach(model))
    generator = torch.Generator().manual_seed(0)
    for n, size in [(48, 32)] * 3 + [
        (20, 32),
        (8, 40),
        (8, 32),
        (48, 32),
        (48, 40),
        (48, 40),
        (20, 32),
        (48, 32),
    ]:
        out = panel(torch.rand(n, 3, size, size, generator=generator).cuda())
        torch.testing.assert_close(out["auto"].confidence, out["plain"].confidence, atol=2e-3, rtol=0)


def test_draws_that_look_at_values_stay_outside() -> None:
    """MixStyle draws until it has enough: no graph of a whole poll, no harm to those of others."""
    stream = torch.cuda.current_stream()
    panel = sicl.Panel(
        {"mixed": sicl.SICL(style="mixstyle"), "default": sicl.SICL()},
        sicl.Tent().attach(sicl.load_model("demo", device="cuda")),
    )
    for _ in range(4):
        panel(torch.rand(32, 3, 32, 32, device="cuda"))
    assert panel.calibrations["mixed"].poll.captures.captured == 0
    assert panel.calibrations["default"].poll.captures.captured == 1
    torch.cuda.empty_cache()
    assert torch.cuda.current_stream() == stream


def test_norms_that_change_their_mode_are_polled_anew() -> None:
    """A graph of running statistics is not replayed once the network uses the batch's."""
    specs = {n: sicl.SICL(precision="float32", engine=n, witnesses=("network",)) for n in ("auto", "plain")}
    panel = sicl.Panel(specs, sicl.load_model("demo", device="cuda"))
    images = torch.rand(6, 32, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cuda()
    for i, batch in enumerate(images):
        if i == 3:
            for module in panel.adapter.network.modules():
                if isinstance(module, torch.nn.BatchNorm2d):
                    module.train().track_running_stats = False
        out = panel(batch)
        torch.testing.assert_close(out["auto"].confidence, out["plain"].confidence, atol=2e-3, rtol=0)
    assert panel.calibrations["auto"].poll.captures.problem == ""


def test_batches_of_changing_size_are_followed() -> None:
    """A last, smaller batch, and the first size again."""
    spec = sicl.SICL(variants=4, content_variants=4, precision="float32")
    trusted = spec.attach(sicl.load_model("demo", device="cuda"))
    plain = replace(spec, engine="plain").attach(sicl.load_model("demo", device="cuda"))
    generator = torch.Generator().manual_seed(0)
    for n in (32, 32, 20, 32, 1, 1, 32):
        images = torch.rand((n, 3, 32, 32), generator=generator).cuda()
        difference = (trusted(images).confidence - plain(images).confidence).abs()
        assert float(difference.mean()) < 0.03


def test_the_memory_bound_holds_on_a_gpu() -> None:
    """Variants take no more than `max_memory`."""
    model = resnet18().cuda().eval()
    trusted = sicl.SICL(max_memory=0.25).attach(model)
    images = torch.rand(64, 3, 32, 32, device="cuda")
    trusted(images)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(3):
        trusted(images)
    assert torch.cuda.max_memory_allocated() - before < 0.5 * 2**30


@pytest.mark.parametrize(
    "method", [sicl.Source(), sicl.Rotta(), sicl.Sotta()], ids=["source", "rotta", "sotta"]
)
def test_networks_with_running_statistics_are_followed(method: sicl.Source | sicl.Rotta | sicl.Sotta) -> None:
    """Graphs read running statistics where they are now, and the anchor's votes agree with the plain engine's."""
    data = load_dataset("demo")
    pixels = corrupt(torch.from_numpy(data.images[:240].copy()), "speckle_noise", severity=5, seed=0)
    images = (pixels.permute(0, 3, 1, 2).float() / 255).cuda()
    outs = []
    for engine in ("plain", "auto"):
        spec = sicl.SICL(variants=4, content_variants=4, engine=engine, precision="float32", temper=False)
        trusted = spec.attach(method.attach(sicl.load_model("demo", device="cuda")))
        outs.append([trusted(part) for part in images.split(48)])
    for plain, fast in zip(*outs):
        assert float((plain.signals["say_anchor"] - fast.signals["say_anchor"]).abs()) < 0.05
        assert float((plain.signals["anchor_mirror"] - fast.signals["anchor_mirror"]).abs().mean()) < 0.03
        assert float((plain.confidence - fast.confidence).abs().mean()) < 0.03
