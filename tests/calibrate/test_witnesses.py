"""Who is asked: the network as it predicts, and the anchor where it may say something else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from calibrate_networks import images, small_net, small_vit
from torch import Tensor, nn

import sicl
from sicl.adapt import Method
from sicl.corruptions import corrupt
from sicl.data import load_dataset
from sicl.errors import OptionError, UnsupportedModelError
from sicl.metrics import auroc

ROTTA = sicl.Rotta(capacity=8, update_every=8)
WHO: dict[str, tuple[Method, Any, list[str]]] = {
    "source": (sicl.Source(), small_net, ["network", "anchor"]),
    "source, layer norms": (sicl.Source(), small_vit, ["network"]),
    "batch statistics": (sicl.BatchNorm(), small_net, ["network", "anchor"]),
    "tent": (sicl.Tent(), small_net, ["network", "anchor"]),
    "tent, layer norms": (sicl.Tent(), small_vit, ["network", "anchor"]),
    "rotta": (ROTTA, small_net, ["network", "anchor"]),
}


def _asked(live: sicl.calibrate.Calibrated) -> list[str]:
    calibration: Any = live.calibration
    return [witness.name for witness in calibration.witnesses]


@pytest.mark.parametrize("case", WHO)
def test_those_are_asked_that_differ_from_the_network(case: str) -> None:
    """An anchor for what adapts, or has running statistics; a fixed network without any has but one voice."""
    method, make, expected = WHO[case]
    trusted = sicl.SICL(variants=2).attach(method.attach(make()))
    assert _asked(trusted) == expected
    signals = trusted(images(20)).signals
    asked = {"mirror", "crop", "repair", "style"}
    assert {name for name in signals if name.startswith("anchor_")} == (
        {f"anchor_{what}" for what in asked} if "anchor" in expected else set()
    )
    assert {name for name in signals if name.startswith("say_")} == {f"say_{who}" for who in expected}
    # The softmax is what the network predicts with: nobody else is asked for it.
    assert not [name for name in signals if name.endswith("_softmax")]
    assert float(sum(signals[f"say_{name}"] for name in expected)) == pytest.approx(1.0)


def test_witnesses_can_be_left_out_but_not_the_network() -> None:
    """The network is what the confidence is about."""
    assert _asked(sicl.SICL(witnesses=("network",)).attach(small_net())) == ["network"]
    assert _asked(sicl.SICL(norm="frozen").attach(small_net())) == ["network", "anchor"]
    assert _asked(sicl.SICL.paper().attach(small_net())) == ["network"]
    with pytest.raises(OptionError, match="`witnesses`"):
        sicl.SICL(witnesses=("network", "batch"))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match='`witnesses` must name the "network"'):
        sicl.SICL(witnesses=("anchor",))


def test_variants_are_shared_between_the_witnesses() -> None:
    """Two witnesses, half of the style variants each: what is asked costs the same."""
    sent = []
    for witnesses in (("network",), ("network", "anchor")):
        spec = sicl.SICL(members=("style",), variants=8, witnesses=witnesses)
        trusted = spec.attach(sicl.Tent().attach(small_net()))
        trusted(images(20))
        calibration: Any = trusted.calibration
        engines = {q.engine for w in calibration.witnesses for q in w.questions.values()}
        sent.append(sum(engine.rows_sent for engine in engines))
    assert sent == [8 * 20, 8 * 20]


@pytest.mark.parametrize("method", [sicl.Source(), sicl.Rotta()], ids=["source", "rotta"])
def test_confidence_tells_right_from_wrong_when_running_statistics_no_longer_fit(method: Method) -> None:
    """Under speckle noise the anchor, whose early norms follow the batch, ranks better, and gets the say."""
    data = load_dataset("demo")
    pixels, labels = torch.from_numpy(data.images[:128].copy()), torch.from_numpy(data.labels[:128].copy())
    pixels = corrupt(pixels, "speckle_noise", severity=5, seed=0).permute(0, 3, 1, 2).float() / 255
    found = {}
    for witnesses in (("network",), ("network", "anchor")):
        trusted = sicl.SICL(variants=4, witnesses=witnesses).attach(method.attach(sicl.load_model("demo")))
        outs = [trusted(part) for part in pixels.split(64)]
        right = torch.cat([out.labels for out in outs]) == labels
        found[witnesses] = auroc(torch.cat([out.confidence for out in outs]), right)
    assert found["network", "anchor"] > 0.9
    # What is left to be had is halved, nearly.
    assert 1 - found["network", "anchor"] < 0.6 * (1 - found["network",])
    assert float(outs[-1].signals["say_anchor"]) > 0.55


class _Flat(nn.Module):
    """A classifier of flat input."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x.flatten(1))
        return out


def _opinionated(n_in: int) -> nn.Linear:
    layer = nn.Linear(n_in, 4)
    with torch.no_grad():
        layer.weight.normal_(generator=torch.Generator().manual_seed(0))
    return layer


FLAT = {
    "linear": (_Flat(_opinionated(16)), (16, 1, 1)),
    "linear on images": (_Flat(_opinionated(48)), (3, 4, 4)),
    "norms without maps": (_Flat(nn.Linear(16, 8), nn.BatchNorm1d(8), _opinionated(8)).eval(), (16, 1, 1)),
}


@pytest.mark.parametrize("members", [sicl.SICL().members, ("style",)])
@pytest.mark.parametrize("case", FLAT)
def test_a_network_that_can_be_asked_nothing_gets_its_tempered_softmax(
    case: str, members: tuple[Any, ...]
) -> None:
    """With one warning, however many batches."""
    network, shape = FLAT[case]
    trusted = sicl.SICL(members=members).attach(network)
    calibration: Any = trusted.calibration
    with pytest.warns(UserWarning, match="can ask _Flat nothing") as seen:
        outs = [trusted(torch.rand(24, *shape, generator=torch.Generator().manual_seed(i))) for i in range(3)]
    assert len(seen) == 1
    tempered = (outs[-1].logits / calibration.temper.temperature).softmax(dim=1)
    torch.testing.assert_close(outs[-1].confidence, tempered.amax(dim=1))
    assert "temperature" in outs[-1].signals
    assert "Source predicts" in trusted.explain()


def test_what_can_be_asked_is_asked_without_a_warning() -> None:
    """Images too small for a mirror or a crop, with feature maps: style is left."""
    network = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 9, 4)
    ).eval()
    signals = sicl.SICL(variants=2).attach(network)(torch.rand(20, 3, 3, 3)).signals
    assert "style_invariance" in signals
    assert "crop_invariance" not in signals


def test_the_printed_formula_refuses_what_it_cannot_ask() -> None:
    """It has no softmax to fall back on."""
    with pytest.raises(UnsupportedModelError, match="found no convolution"):
        sicl.SICL.paper().attach(FLAT["linear"][0])
