"""Recent images beside a batch: small batches, and those of one class, vote as large mixed ones do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from calibrate_networks import images, small_net
from torch import Tensor

import sicl
from sicl.calibrate.sicl.company import SIZE, Company
from sicl.calibrate.sicl.votes import Ask
from sicl.calibrate.sicl.witnesses import Witness
from sicl.errors import UnsupportedModelError

VOTES = ("mirror", "crop")
STREAM = images(192, seed=3)


def _after_two_batches() -> sicl.calibrate.Calibrated:
    # Predicted by running statistics, so that labels do not depend on the batch size.
    spec = sicl.SICL(variants=2, temper=False, precision="float32")
    trusted = spec.attach(sicl.Source().attach(small_net()))
    for part in STREAM[:128].split(64):
        trusted(part)
    return trusted


def _votes(size: int) -> Tensor:
    """What the witness by the batch's statistics says of sixteen images that come so many at a time."""
    trusted = _after_two_batches()
    outs = [trusted(part) for part in STREAM[128 : 128 + max(size, 16)].split(size)]
    return torch.stack([torch.cat([out.signals[f"batch_{n}"] for out in outs])[:16] for n in VOTES])


def _alone(size: int) -> Tensor:
    """The same by their own statistics."""
    calibration: Any = _after_two_batches().calibration
    questions, chosen = calibration.witnesses[1].questions, STREAM[128:144]
    parts = []
    for part in chosen.split(size):
        labels = calibration.anchor.live(part).argmax(dim=1)
        polled = calibration.poll([Ask(questions[n], 1) for n in VOTES], part, labels, torch.ones(()))
        parts.append(torch.stack([votes.mean("soft") for votes in polled.votes]))
    return torch.cat(parts, dim=1)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_small_batches_vote_as_the_large_one_does(size: int) -> None:
    """The same images after the same stream; by their own statistics they would vote quite differently."""
    expected = _votes(64)
    lost, alone = ((votes - expected).abs().mean() for votes in (_votes(size), _alone(size)))
    assert float(lost) < 0.06
    assert float(lost) < 0.3 * float(alone)


def test_a_first_small_batch_has_no_company_and_works() -> None:
    """The witness by the batch's statistics is not asked until there is some."""
    trusted = sicl.SICL(variants=2).attach(small_net())
    first, second = trusted(STREAM[:2]), trusted(STREAM[2:4])
    assert "batch_mirror" not in first.signals
    assert "batch_mirror" in second.signals


@pytest.mark.filterwarnings("ignore:Tent normalises a batch of one image")
def test_single_images_of_a_network_by_batch_statistics_are_normalised_with_recent_ones() -> None:
    """A batch of one has no statistics of its own: mirrored alone it would say nothing about the image."""
    trusted = sicl.SICL(variants=4).attach(sicl.Tent(lr=1e-4).attach(small_net()))
    calibration: Any = trusted.calibration
    trusted(STREAM[:64])
    trusted(STREAM[64:65])
    asked, begun = calibration._whom(STREAM[65:66], torch.zeros(1, dtype=torch.long))
    assert all(len(b) == 1 and len(b.beside) == SIZE // 2 for b in begun.values())
    assert asked["network"] is not calibration.witnesses[0].questions
    assert {q.engine for q in asked["network"].values()} <= set(begun)


def test_large_mixed_batches_need_no_company_and_sorted_ones_do() -> None:
    """Whatever the number of classes; a stream of one class alone is not sorted."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(64, 3, 4, 4)
    for n_classes in (2, 10, 100):
        labels = torch.randint(n_classes, (768,), generator=generator)
        streams = {"mixed": labels, "sorted": labels.sort().values, "single": labels * 0}
        for name, stream in streams.items():
            company = Company(0)
            beside = [company.beside(images, part) for part in stream.split(64)]
            assert (beside[-1] is not None) is (name == "sorted"), (n_classes, name)


def test_the_memory_is_bounded_and_holds_the_recent_classes() -> None:
    """No more than `SIZE` images, whatever the batch size, of several recent batches."""
    for size in (1, 24, 300):
        company = Company(0)
        for number in range(200 if size == 1 else 24):
            company.beside(torch.full((size, 1, 4, 4), float(number)), torch.zeros(size, dtype=torch.long))
        kept = company.state_dict()["images"][:, 0, 0, 0]
        assert len(kept) == SIZE
        assert len(kept.unique()) > 4
        if size == 300:
            assert float(kept.max()) == 23.0
            assert float(kept.median()) >= 16.0
    assert len(company.state_dict()["labels"]) <= 8


def test_images_of_another_size_start_anew() -> None:
    """Nothing of one shape is put beside another."""
    company, labels = Company(0), torch.zeros(2, dtype=torch.long)
    company.beside(torch.rand(2, 3, 8, 8), labels)
    assert company.beside(torch.rand(2, 3, 4, 4), labels) is None
    beside = company.beside(torch.rand(2, 3, 4, 4), labels)
    assert beside is not None
    assert beside.shape == (2, 3, 4, 4)


def test_a_saved_company_goes_on_as_the_original() -> None:
    """Images, what is known of the stream, and the drawing."""
    company, other = Company(0), Company(1)
    for number in range(9):
        company.beside(torch.rand(40, 3, 4, 4), torch.full((40,), number))
    other.load_state_dict(company.state_dict())
    for number in range(5):
        images, labels = torch.rand(40, 3, 4, 4), torch.full((40,), number)
        found, expected = other.beside(images, labels), company.beside(images, labels)
        assert found is not None
        assert expected is not None
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("method", "asked"), [(sicl.Tent(lr=1e-4), ["network", "anchor"]), (sicl.Source(), ["network"])]
)
def test_a_stream_sorted_by_class_is_normalised_in_company(method: Any, asked: list[str]) -> None:
    """A network by batch statistics sees recent images beside; one by running statistics is asked by them alone."""
    trusted = sicl.SICL(variants=2).attach(method.attach(small_net()))
    calibration: Any = trusted.calibration
    labels = small_net()(STREAM).argmax(dim=1).sort()
    for part, predicted in zip(STREAM[labels.indices].split(24), labels.values.split(24)):
        found, begun = calibration._whom(part, predicted)
    assert calibration.company.state_dict()["mixed"] is False
    assert list(found) == asked
    assert {len(b.beside) for b in begun.values()} == ({SIZE} if "anchor" in asked else set())


def test_a_witness_that_cannot_keep_statistics_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prediction still comes: of the network itself."""
    trusted = _after_two_batches()

    def refuse(*_: Any) -> Any:
        raise UnsupportedModelError("does not give the same logits")

    monkeypatch.setattr(Witness, "begin_in_company", refuse)
    out = trusted(STREAM[128:130])
    assert "say_batch" not in out.signals
    assert float(out.signals["say_network"]) == 1.0
    assert bool(out.confidence.isfinite().all())
