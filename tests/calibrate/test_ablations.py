"""SICL's ablations are options: each runs, and changes what it is meant to change."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from calibrate_networks import images, small_net
from torch import Tensor

import sicl
from sicl import perturb
from sicl.adapt import Moment


def _out(**changes: Any) -> sicl.Prediction:
    # One witness: what is measured is its votes, and the confidence they make.
    base = {"witnesses": ("network",), "variants": 8, "content_variants": 8, "relaxation": "none"}
    options = {**base, "votes": "soft", **changes}
    return sicl.SICL(**options).attach(sicl.BatchNorm().attach(small_net()))(images(24))


def _variant_statistics(**changes: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Channel means and spreads of the features before and after one style variant."""
    adapter = sicl.BatchNorm().attach(small_net())
    # The plain engine runs the modules themselves, so a hook sees the variants.
    exact: dict[str, Any] = {"engine": "plain", "precision": "float32", "style_scale": 1.0, **changes}
    spec = sicl.SICL(members=("style",), variants=1, relaxation="none", layer="layer1", **exact)
    calibration = spec.calibration(adapter)
    seen: list[Tensor] = []
    # What enters the next stage: in a clean pass the features, in a resumed one the variant.
    handle = adapter.network.get_submodule("layer2").register_forward_pre_hook(
        lambda _module, args: seen.append(args[0].detach().clone())
    )
    batch = images(24)
    calibration.predict(Moment(adapter.network, batch, adapter.forward(batch).detach()))
    handle.remove()
    clean = seen[0]
    return *perturb.style_statistics(clean), *perturb.style_statistics(seen[-1])


def test_mean_only_keeps_the_spread_and_std_only_keeps_the_mean() -> None:
    """Each statistic can be perturbed alone."""
    mean, std, new_mean, new_std = _variant_statistics(components="mean")
    torch.testing.assert_close(new_std, std, atol=5e-3, rtol=0)
    assert float((new_mean - mean).abs().mean()) > 0.03
    mean, std, new_mean, new_std = _variant_statistics(components="std")
    torch.testing.assert_close(new_mean, mean, atol=5e-3, rtol=0)
    assert float((new_std - std).abs().mean()) > 0.03


def test_mixstyle_stays_within_the_styles_of_the_batch() -> None:
    """Mixed statistics lie between those of two samples; Gaussian noise leaves that range."""
    mean, _, mixed, _ = _variant_statistics(style="mixstyle")
    tolerance = 5e-3
    assert bool((mixed <= mean.amax(dim=0) + tolerance).all())
    assert bool((mixed >= mean.amin(dim=0) - tolerance).all())
    mean, _, noisy, _ = _variant_statistics(style="gaussian")
    assert bool((noisy > mean.amax(dim=0) + tolerance).any())


@pytest.mark.parametrize(
    "changes",
    [
        {"style": "mixstyle"},
        {"components": "mean"},
        {"components": "std"},
        {"layer": "layer2"},
        {"delta": "global"},
        {"norm": "frozen"},
        {"variants": 1},
    ],
    ids=str,
)
def test_each_ablation_changes_the_style_votes(changes: dict[str, Any]) -> None:
    """Every option is read."""
    base = {"norm": "batch", "style": "gaussian"}
    out, plain = _out(**{**base, **changes}), _out(**base)
    assert bool(((out.confidence >= 0) & (out.confidence <= 1)).all())
    assert not torch.equal(out.signals["style_invariance"], plain.signals["style_invariance"])


def test_the_content_ensemble_is_a_signal_and_can_be_the_confidence() -> None:
    """Content perturbation as the ensemble: other votes than the style's, alone or beside them."""
    out = _out(members=("style", "content"))
    assert not torch.equal(out.signals["content_invariance"], out.signals["style_invariance"])
    alone = _out(members=("content",))
    torch.testing.assert_close(alone.confidence, alone.signals["content_invariance"])


def test_relaxation_is_none_or_as_printed() -> None:
    """Without it the confidence is the style invariance; printed, times one less the content invariance."""
    out = _out(members=("style",), relaxation="none")
    torch.testing.assert_close(out.confidence, out.signals["style_invariance"])
    out = _out(members=("style",), relaxation="printed")
    expected = out.signals["style_invariance"] * (1 - out.signals["content_invariance"])
    torch.testing.assert_close(out.confidence, expected)


def test_with_an_anchor_the_confidence_is_what_both_say() -> None:
    """Without a guard the mean of the log-odds; printed, times one less the network's content invariance."""
    out = _out(members=("style",), witnesses=("network", "anchor"))
    said = torch.stack([out.signals["style_invariance"], out.signals["anchor_style"]])
    assert float((said[0] - said[1]).abs().max()) > 0.01
    together = torch.special.logit(said.clamp(1e-3, 1 - 1e-3)).mean(dim=0).sigmoid()
    torch.testing.assert_close(out.confidence, together)
    out = _out(members=("style",), witnesses=("network", "anchor"), relaxation="printed")
    said = torch.stack([out.signals["style_invariance"], out.signals["anchor_style"]])
    together = torch.special.logit(said.clamp(1e-3, 1 - 1e-3)).mean(dim=0).sigmoid()
    torch.testing.assert_close(out.confidence, together * (1 - out.signals["content_invariance"]))


def test_hard_votes_are_shares_of_the_variants() -> None:
    """With N variants a hard vote is a multiple of 1 / N."""
    eighths = 8 * _out(votes="hard").signals["style_invariance"]
    torch.testing.assert_close(eighths, eighths.round())
