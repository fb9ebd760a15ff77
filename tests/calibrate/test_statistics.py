"""Votes of networks with running statistics: their own while these fit the stream, the batch's when they do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sicl
from sicl.calibrate import Calibrated
from sicl.calibrate.sicl import calibration as page
from sicl.calibrate.sicl.statistics import Replacement, fit_of, share_of
from sicl.corruptions import corrupt
from sicl.data import load_dataset
from sicl.engine.norms import batch_norms, batch_statistics
from sicl.engine.split import Split
from sicl.errors import OptionError
from sicl.metrics import auroc

METHODS = {"source": sicl.Source(), "rotta": sicl.Rotta()}


def pictures(corruption: str | None = None, *, by_class: bool = False) -> tuple[Tensor, Tensor]:
    """192 real images and their classes."""
    data = load_dataset("demo")
    pixels, labels = torch.from_numpy(data.images[:192].copy()), torch.from_numpy(data.labels[:192].copy())
    if by_class:
        order = labels.argsort(stable=True)
        pixels, labels = pixels[order], labels[order]
    if corruption:
        pixels = corrupt(pixels, corruption, severity=5, seed=0)
    return pixels.permute(0, 3, 1, 2).float() / 255, labels


def trusted(method: str = "source", **changes: object) -> Calibrated:
    """A live SICL with few variants."""
    spec = sicl.SICL(**{"variants": 4, "content_variants": 4, **changes})  # type: ignore[arg-type]
    return spec.attach(METHODS[method].attach(sicl.load_model("demo")))


@pytest.mark.parametrize("method", METHODS)
def test_confidence_tells_right_from_wrong_when_running_statistics_no_longer_fit(method: str) -> None:
    """Under speckle noise the votes of the network as it stands rank no better than chance."""
    images, labels = pictures("speckle_noise")
    found = {}
    for statistics in ("network", "auto"):
        calibrated = trusted(method, statistics=statistics)
        outs = [calibrated(part) for part in images.split(64)]
        right = torch.cat([out.labels for out in outs]) == labels
        found[statistics] = auroc(torch.cat([out.confidence for out in outs]), right)
    assert found["auto"] > 0.8
    assert found["auto"] > found["network"] + 0.1


def test_statistics_that_fit_are_kept() -> None:
    """On clean images style and content votes are those of the network as it stands."""
    images, _ = pictures()
    auto, network = (trusted(statistics=s)(images[:64]) for s in ("auto", "network"))
    assert float(auto.signals["fit"]) > 0.95
    for name in ("style_invariance", "content_invariance"):
        torch.testing.assert_close(auto.signals[name], network.signals[name], atol=0.02, rtol=0)


@pytest.mark.parametrize(
    ("fit", "share"), [(1.0, 0.0), (0.96, 0.0), (0.9, 0.25), (0.8, 0.5), (0.7, 0.75), (0.6, 1.0), (0.1, 1.0)]
)
def test_the_less_they_fit_the_more_votes_use_the_batchs(fit: float, share: float) -> None:
    """In quarters, until all do when four of ten predictions are lost."""
    assert share_of(torch.tensor(fit)) == share


def test_votes_are_shared_between_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half and half lies in the middle; each variant is computed once."""
    images, _ = pictures("speckle_noise")
    mean, sent = {}, {}
    for share in (0.0, 0.5, 1.0):
        calibrated = trusted(variants=12, content_variants=12)
        calibration: Any = calibrated.calibration
        monkeypatch.setattr(page, "share_of", lambda _fit, share=share: share)
        signals = calibrated(images[:64]).signals
        mean[share] = [float(signals[f"{kind}_invariance"].mean()) for kind in ("style", "content")]
        asked = (*calibration.questions.values(), *calibration.renewed.values())
        sent[share] = sum(engine.rows_sent for engine in {question.engine for question in asked})
    for none, half, all_ in zip(mean[0.0], mean[0.5], mean[1.0]):
        assert abs(none - all_) > 0.05
        assert half == pytest.approx((none + all_) / 2, abs=0.3 * abs(none - all_))
    assert sent == dict.fromkeys(mean, 64 * 24)


def test_fit_compares_with_what_the_batchs_statistics_could_confirm() -> None:
    """Labels that they gave themselves fit fully, however few of them survive the mirror; others less."""
    calibration: Any = trusted().calibration
    images, _ = pictures("speckle_noise")
    engine = calibration.renewed["mirror"].engine
    begun = engine.begin(images[:64])
    logits, mirrored = engine.logits(begun), engine.logits(begun, engine.view(images[:64].flip(-1)))[0]
    own = logits.argmax(dim=1)
    assert float(fit_of(mirrored, logits, own)) == 1.0
    assert float((mirrored.argmax(dim=1) == own).float().mean()) < 0.9
    half = torch.where(torch.arange(64) < 32, own, (mirrored.argmax(dim=1) + 1) % 10)
    assert 0.3 < float(fit_of(mirrored, logits, half)) < 0.7


def test_streams_sorted_by_class_keep_the_networks_statistics() -> None:
    """From the second class on; a batch of one class has statistics that mean nothing."""
    images, _ = pictures(by_class=True)
    calibrated = trusted()
    outs = [calibrated(part) for part in images.split(16)]
    assert all("fit" not in out.signals for out in outs[3:])


def test_small_batches_and_networks_with_batch_statistics_are_left_alone() -> None:
    """There is nothing to renew, or too little to renew it with."""
    images, _ = pictures()
    assert "fit" not in trusted()(images[:8]).signals
    assert (
        "fit"
        not in sicl.SICL(variants=2).attach(sicl.Tent().attach(sicl.load_model("demo")))(images[:32]).signals
    )
    assert "fit" not in trusted(norm="frozen")(images[:32]).signals


def test_batch_statistics_are_those_of_the_batch_and_leave_no_trace() -> None:
    """Also for robust batch norms, whose own training mode would mix them with the running ones."""
    images, _ = pictures()
    adapter = sicl.Rotta().attach(sicl.load_model("demo"))
    before = [b.clone() for b in adapter.network.buffers()]
    with torch.no_grad(), batch_statistics(adapter.network):
        found = adapter.network(images[:32])
    expected = sicl.BatchNorm().attach(sicl.load_model("demo"))(images[:32])
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)
    assert all(torch.equal(a, b) for a, b in zip(before, adapter.network.buffers()))
    assert not any("forward" in m.__dict__ or m.training for m in batch_norms(adapter.network))


@pytest.mark.parametrize("layer", ["auto", "layer1:input"])
def test_a_split_with_batch_statistics_resumes_what_it_ran(layer: str) -> None:
    """Features and logits with the batch's statistics, once and stacked."""
    images, _ = pictures()
    split = Split(sicl.load_model("demo"), layer, statistics="batch")
    begun = split.run(images[:16])
    once = split.resume(begun.features, begun)
    torch.testing.assert_close(once, begun.logits, atol=1e-3, rtol=1e-3)
    twice = split.resume(torch.cat([begun.features] * 2), begun, groups=2)
    torch.testing.assert_close(twice, torch.cat([begun.logits] * 2), atol=1e-3, rtol=1e-3)


def test_mixed_streams_are_told_from_sorted_ones() -> None:
    """Whatever the number of classes; one class alone is not mixed."""
    generator = torch.Generator().manual_seed(0)
    for n_classes in (2, 10, 100):
        labels = torch.randint(n_classes, (512,), generator=generator)
        norms = batch_norms(sicl.load_model("demo"))
        mixed, ordered, single = (Replacement(norms, 0, wanted=True) for _ in range(3))
        assert all(mixed.observe(part) for part in labels.split(64))
        assert [ordered.observe(part) for part in labels.sort().values.split(64)][-1] is False
        assert single.observe(torch.zeros(64, dtype=torch.long)) is False


def test_a_wrong_choice_is_refused() -> None:
    """The options are named."""
    with pytest.raises(OptionError, match="statistics"):
        sicl.SICL(statistics="running")  # type: ignore[arg-type]
