"""Graphs on a CUDA device: lanes, copies of live models, and batch norms that do more than normalise."""

from __future__ import annotations

import copy

import pytest
import torch

import sicl
from sicl.data import load_dataset

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("exact_convolutions"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("norm", ["batch", "frozen"])
def test_lanes_change_nothing(norm: str) -> None:
    """Networks that run beside each other vote as they do one after the other."""
    data, confidence = load_dataset("demo"), {}
    pixels = torch.from_numpy(data.images[: 6 * 48].copy()).permute(0, 3, 1, 2).float().div(255).cuda()
    for lanes in (True, False):
        spec = sicl.SICL(precision="float32", norm=norm)
        trusted = spec.attach(sicl.Tent().attach(sicl.load_model("demo", device="cuda")))
        trusted.calibration.graphs.lanes = lanes  # type: ignore[attr-defined]
        confidence[lanes] = torch.cat([trusted(batch).confidence for batch in pixels.split(48)])
        captures = trusted.calibration.poll.captures  # type: ignore[attr-defined]
        assert (captures.captured, captures.problem) == (1, "")
    torch.testing.assert_close(confidence[True], confidence[False], atol=2e-3, rtol=0)


def test_copies_of_a_live_model_capture_graphs_of_their_own() -> None:
    """After graphs were replayed: a copy goes on with the same votes, and shares no memory with the original."""
    trusted = sicl.SICL(precision="float32").attach(
        sicl.Tent().attach(sicl.load_model("demo", device="cuda"))
    )
    generator = torch.Generator().manual_seed(0)
    batches = torch.rand(8, 32, 3, 32, 32, generator=generator).cuda()
    for batch in batches[:4]:
        trusted(batch)
    other = copy.deepcopy(trusted)
    for batch in batches[4:]:
        found, expected = other(batch), trusted(batch)
        torch.testing.assert_close(found.confidence, expected.confidence, atol=2e-3, rtol=0)


class Doubled(torch.nn.BatchNorm2d):
    """A batch norm with something after it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * 1.01


def test_norms_with_an_activation_are_captured_too() -> None:
    """A subclass that calls torch's `batch_norm` and does more: the plain votes, by a graph."""
    model = sicl.load_model("demo", device="cuda")
    for module in model.modules():
        if type(module) is torch.nn.BatchNorm2d:
            module.__class__ = Doubled
    specs = {n: sicl.SICL(precision="float32", engine=n) for n in ("auto", "plain")}
    panel = sicl.Panel(specs, sicl.Tent(lr=1e-4).attach(model))
    for batch in torch.rand(5, 32, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cuda():
        out = panel(batch)
        torch.testing.assert_close(out["auto"].confidence, out["plain"].confidence, atol=2e-3, rtol=0)
    assert panel.calibrations["auto"].engine.name == "graph float32"  # type: ignore[attr-defined]
