"""Whom SICL asks: the network, the anchor, the batch's statistics, and the company that a batch is normalised with."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import sicl
from sicl.calibrate.sicl.company import SIZE, Company
from sicl.calibrate.sicl.say import MOST, PRIOR, Say, agreements
from sicl.corruptions import corrupt
from sicl.data import load_dataset
from sicl.engine.norms import batch_norms, batch_statistics
from sicl.engine.split import Split
from sicl.metrics import auroc

METHODS = {"source": sicl.Source(), "rotta": sicl.Rotta()}


def pictures(corruption: str | None = None) -> tuple[Tensor, Tensor]:
    """192 real images and their classes."""
    data = load_dataset("demo")
    pixels, labels = torch.from_numpy(data.images[:192].copy()), torch.from_numpy(data.labels[:192].copy())
    if corruption:
        pixels = corrupt(pixels, corruption, severity=5, seed=0)
    return pixels.permute(0, 3, 1, 2).float() / 255, labels


@pytest.mark.parametrize("method", METHODS)
def test_confidence_tells_right_from_wrong_when_running_statistics_no_longer_fit(method: str) -> None:
    """Under speckle noise the network alone ranks worse than with the batch's statistics beside it."""
    images, labels = pictures("speckle_noise")
    found = {}
    for witnesses in (("network",), ("network", "batch")):
        spec = sicl.SICL(variants=4, witnesses=witnesses)  # type: ignore[arg-type]
        calibrated = spec.attach(METHODS[method].attach(sicl.load_model("demo")))
        outs = [calibrated(part) for part in images.split(64)]
        right = torch.cat([out.labels for out in outs]) == labels
        found[witnesses] = auroc(torch.cat([out.confidence for out in outs]), right)
    assert found["network", "batch"] > found["network",]


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


def test_streams_sorted_by_class_get_company_and_mixed_ones_do_not() -> None:
    """Whatever the number of classes; the company is at most `SIZE` images of the recent stream."""
    generator = torch.Generator().manual_seed(0)
    for n_classes in (2, 10, 100):
        labels = torch.randint(n_classes, (512,), generator=generator)
        mixed, ordered = Company(0), Company(0)
        pixels = torch.rand(64, 1, 2, 2)
        assert not any(mixed.beside(pixels, part) is not None for part in labels.split(64))
        company = [ordered.beside(pixels, part) for part in labels.sort().values.split(64)][-1]
        assert company is not None
        assert len(company) <= SIZE


def test_small_batches_get_company_from_the_second_on() -> None:
    """There is nothing recent before the first."""
    company = Company(0)
    found = [company.beside(torch.rand(4, 1, 2, 2), torch.zeros(4, dtype=torch.long)) for _ in range(3)]
    assert [None if f is None else len(f) for f in found] == [None, 4, 8]


def test_answers_that_go_up_and_down_together_agree() -> None:
    """By hand: two that are the same and one that is noise; a single question has the agreement assumed."""
    generator = torch.Generator().manual_seed(0)
    known, noise = torch.rand(2, 4000, generator=generator)
    same, also, other = agreements(torch.stack([known, known, noise], dim=1))
    assert float(same) == pytest.approx(0.5, abs=0.05)
    assert float(same) == pytest.approx(float(also))
    assert float(other) < 0.05
    assert float(agreements(known.unsqueeze(1))) == PRIOR
    assert float(agreements(known.unsqueeze(1).expand(-1, 3)).max()) == pytest.approx(MOST)


def test_a_witness_that_knows_more_has_more_say() -> None:
    """Its answers agree with each other, those of the other are noise."""
    generator = torch.Generator().manual_seed(0)
    known = torch.rand(256, generator=generator)
    say = Say()
    noise = torch.rand(3, 256, generator=generator)
    say.observe({"network": known + 0.1 * noise, "batch": noise})
    assert float(say.weights("network")[1]) > 20 * float(say.weights("batch")[1])
    torch.testing.assert_close(say.weights("network")[0].sum(), torch.tensor(1.0))
