"""MC Dropout: where units are dropped, what the average is, and how passes share batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from calibrate_networks import images, small_net, small_vit
from torch import nn

import sicl
from sicl.adapt import Moment
from sicl.calibrate.mc_dropout import dropout_places
from sicl.errors import OptionError, UnsupportedModelError
from sicl.models.cifar import resnet18


def test_dropout_follows_each_stage_of_a_resnet() -> None:
    """Four stages, four places (as AETTA has them)."""
    assert dropout_places(resnet18(width=2), 4) == ["layer1", "layer2", "layer3", "layer4"]


def test_long_stacks_of_blocks_get_dropout_at_equal_distances() -> None:
    """Of six blocks with at most three places: the ends of three equal parts."""
    assert dropout_places(small_vit(), 3) == ["blocks.1", "blocks.3", "blocks.5"]


def test_hardly_any_dropout_gives_the_softmax() -> None:
    """As p goes to 0 every pass is the adapter's own."""
    for spec in (sicl.McDropout(p=1e-9, passes=2), sicl.McDropout(p=1e-9, passes=2, norm="frozen")):
        out = spec.attach(sicl.BatchNorm().attach(small_net()))(images())
        torch.testing.assert_close(
            out.confidence, out.logits.softmax(dim=1).amax(dim=1), atol=1e-4, rtol=1e-4
        )


def test_the_shared_prefix_and_stacked_passes_equal_whole_passes() -> None:
    """The same masks on whole passes, one after the other, give the same confidence."""
    adapter = sicl.BatchNorm().attach(small_net())
    batch = images()
    logits = adapter(batch)
    spec = sicl.McDropout(passes=1, seed=4)
    calibration = spec.calibration(adapter)
    generator = torch.Generator().manual_seed(4)

    def thin(_module: nn.Module, _args: Any, output: torch.Tensor) -> torch.Tensor:
        keep = torch.empty_like(output).bernoulli_(0.7, generator=generator)
        return output * keep / 0.7

    got = [calibration.predict(Moment(adapter.network, batch, logits)).confidence for _ in range(3)]
    handles = [getattr(adapter.network, stage).register_forward_hook(thin) for stage in ("layer1", "layer2")]
    whole = [adapter.network(batch).softmax(dim=1) for _ in range(3)]
    for handle in handles:
        handle.remove()
    for mine, theirs in zip(got, whole):
        expected = theirs.gather(1, logits.argmax(dim=1, keepdim=True)).squeeze(1)
        torch.testing.assert_close(mine, expected.detach(), atol=1e-5, rtol=1e-4)


def test_stacked_passes_do_not_mix_their_batch_statistics() -> None:
    """Passes run eight at a time or one at a time have the same average, up to the noise of 400 passes."""
    batch = images()
    by_chunk = [
        sicl.McDropout(passes=400, max_batch=rows)
        .attach(sicl.BatchNorm().attach(small_net()))(batch)
        .confidence
        for rows in (12, 96)
    ]
    torch.testing.assert_close(by_chunk[0], by_chunk[1], atol=0.06, rtol=0)


def test_the_averaged_prediction_is_offered_and_can_be_asked_for() -> None:
    """As a signal by default; as labels and confidence with `prediction="averaged"`."""
    model = small_net()
    kept = sicl.McDropout(passes=5, p=0.8).attach(model)(images(64))
    asked = sicl.McDropout(passes=5, p=0.8, prediction="averaged").attach(model)(images(64))
    assert torch.equal(kept.labels, kept.logits.argmax(dim=1))
    assert torch.equal(asked.labels, kept.signals["averaged_labels"])
    assert torch.equal(asked.confidence, kept.signals["averaged_confidence"])
    assert not torch.equal(asked.labels, kept.labels)
    agree = asked.labels == kept.labels
    assert torch.equal(kept.confidence[agree], asked.confidence[agree])
    assert bool((kept.confidence[~agree] <= asked.confidence[~agree]).all())


def test_a_network_without_stages_is_refused() -> None:
    """There is nowhere to put dropout."""
    with pytest.raises(UnsupportedModelError, match="found no stages in Linear"):
        sicl.McDropout().attach(nn.Linear(2, 2))


@pytest.mark.parametrize("options", [{"p": 0.0}, {"p": 1.0}, {"passes": 0}, {"norm": "running"}])
def test_bad_options_are_refused(options: dict[str, Any]) -> None:
    """Specs are checked when made."""
    with pytest.raises(OptionError, match=next(iter(options))):
        sicl.McDropout(**options)


def test_bfloat16_passes_change_little() -> None:
    """Rounding only, with the same masks."""
    x = images(16)
    exact = sicl.McDropout(passes=20, precision="float32").attach(small_net())(x)
    rounded = sicl.McDropout(passes=20, precision="bfloat16").attach(small_net())(x)
    assert float((exact.confidence - rounded.confidence).abs().max()) < 0.03
    assert not torch.equal(exact.confidence, rounded.confidence)
