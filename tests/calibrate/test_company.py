"""Recent images beside a batch: small batches, and those of one class, vote as large mixed ones do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from calibrate_networks import images, small_net, small_vit
from torch import Tensor

import sicl
from sicl.adapt import Method
from sicl.calibrate.sicl.company import SIZE, Company, variation
from sicl.calibrate.sicl.votes import Ask
from sicl.calibrate.sicl.witnesses import Witness
from sicl.errors import InputError, UnsupportedModelError

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
    """What the anchor, by the batch's statistics, says of sixteen images that come so many at a time."""
    trusted = _after_two_batches()
    outs = [trusted(part) for part in STREAM[128 : 128 + max(size, 16)].split(size)]
    return torch.stack([torch.cat([out.signals[f"anchor_{n}"] for out in outs])[:16] for n in VOTES])


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
    assert float(lost) < 0.09
    assert float(lost) < 0.45 * float(alone)


@pytest.mark.parametrize(
    "method",
    [sicl.Source(), sicl.Tent(), sicl.Rotta(update_every=8), sicl.Sotta(update_every=8)],
    ids=["source", "tent", "rotta", "sotta"],
)
def test_a_first_small_batch_has_no_company_and_works(method: Method) -> None:
    """An anchor by the batch's statistics is not asked until sixteen images have come; one without is asked at once."""
    trusted = sicl.SICL(variants=2).attach(method.attach(small_net()))
    outs = [trusted(part) for part in STREAM[:24].split(6)]
    assert ["anchor_mirror" in out.signals for out in outs] == [False, False, True, True]
    for out in outs[:2]:
        assert float(out.signals["say_network"]) == 1.0
        assert bool(out.confidence.isfinite().all())
    by_layer = sicl.SICL(variants=2).attach(sicl.Tent().attach(small_vit()))
    assert "anchor_mirror" in by_layer(STREAM[:2]).signals


@pytest.mark.filterwarnings("ignore:Tent normalises a batch of one image")
def test_single_images_of_a_network_by_batch_statistics_are_normalised_with_recent_ones() -> None:
    """A batch of one has no statistics of its own: mirrored alone it would say nothing about the image."""
    trusted = sicl.SICL(variants=4).attach(sicl.Tent(lr=1e-4).attach(small_net()))
    calibration: Any = trusted.calibration
    trusted(STREAM[:64])
    trusted(STREAM[64:65])
    asked = calibration._whom(STREAM[65:66])
    for witness in calibration.witnesses:
        assert list(asked[witness.name].values()) == list(witness.in_company.values())


def test_a_view_of_one_image_is_normalised_as_that_view_of_the_company() -> None:
    """Each view of the company has statistics of its own: under them its images vote as in one batch."""
    calibration: Any = _after_two_batches().calibration
    witness, company = calibration.witnesses[1], STREAM[:64]
    witness.meet(company, VOTES)
    labels = calibration.anchor.live(company).argmax(dim=1)
    one = torch.ones(())
    together = calibration.poll([Ask(witness.questions[n], 1) for n in VOTES], company, labels, one)
    asks = [Ask(witness.in_company[n], 1) for n in VOTES]
    single = calibration.poll(asks, company[5:6], labels[5:6], one)
    for expected, found in zip(together.votes, single.votes):
        torch.testing.assert_close(found.soft[:, 0], expected.soft[:, 5], atol=1e-3, rtol=0)


def test_kept_statistics_are_part_of_the_state() -> None:
    """A copy goes on as the original, from between two meetings."""
    trusted, other = _after_two_batches(), _after_two_batches()
    for part in STREAM[128:152].split(3):
        trusted(part)
    other.load_state_dict(trusted.state_dict())
    for part in STREAM[152:164].split(3):
        expected, found = trusted(part), other(part)
        assert torch.equal(found.confidence, expected.confidence)
        assert torch.equal(found.signals["anchor_crop"], expected.signals["anchor_crop"])


def test_damaged_statistics_are_refused() -> None:
    """Of another shape, of layers that are not there, or of another witness; nothing has changed then."""
    trusted = _after_two_batches()
    trusted(STREAM[128:130])
    calibration: Any = trusted.calibration
    state = calibration.state_dict()
    pair = (torch.zeros(2), torch.ones(2))
    for kept in ({}, {"anchor": {"clean": {0: pair}}}, {"anchor": {"clean": {99: pair}}}, {"anchor": "text"}):
        with pytest.raises(InputError):
            calibration.load_state_dict({**state, "kept": kept})
    assert len(calibration.witnesses[1].kept) > 1


def test_the_company_is_met_again_only_when_a_quarter_of_it_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two meetings a single image costs its own passes alone."""
    met: list[int] = []
    meet = Witness.meet
    monkeypatch.setattr(Witness, "meet", lambda self, *how: (met.append(len(how[0])), meet(self, *how))[1])
    trusted = _after_two_batches()
    for image in STREAM[:64].split(1):
        trusted(image)
    assert met[0] == SIZE // 2
    assert 2 <= len(met) <= 6


def _pictures(labels: Tensor, noise: float = 1.0) -> Tensor:
    """Images whose classes have a layout each, under noise."""
    generator = torch.Generator().manual_seed(1)
    prototypes = torch.randn(100, 3, 4, 4, generator=generator)
    return 0.5 * prototypes[labels] + noise * torch.randn(len(labels), 3, 4, 4, generator=generator)


def test_large_mixed_batches_need_no_company_and_sorted_ones_do() -> None:
    """Whatever the number of classes; a stream of one class alone is not sorted, nor one whose weather changes."""
    generator = torch.Generator().manual_seed(0)
    for n_classes in (2, 10, 100):
        labels = torch.randint(n_classes, (768,), generator=generator)
        mixed = _pictures(labels)
        weather = torch.linspace(0.2, 1.0, 12).repeat_interleave(64).view(-1, 1, 1, 1)
        streams = {
            "mixed": mixed,
            "weather": mixed * weather + weather.square(),
            "sorted": _pictures(labels.sort().values),
            "single": _pictures(labels * 0),
        }
        for name, stream in streams.items():
            company = Company(0)
            beside = [company.beside(part) for part in stream.split(64)]
            assert (beside[-1] is not None) is (name == "sorted"), (n_classes, name)


def test_shuffled_batches_differ_as_by_chance() -> None:
    """One, whatever their sizes; several times that if each has a level of its own."""
    values = torch.randn(600, 64, generator=torch.Generator().manual_seed(0))
    sizes = [100, 50, 250, 200]
    assert 0.6 < float(variation(list(values.split(sizes)))) < 1.5
    assert float(variation([part + i for i, part in enumerate(values.split(sizes))])) > 20


def test_the_memory_is_bounded_and_holds_the_recent_classes() -> None:
    """No more than `SIZE` images, whatever the batch size, of several recent batches."""
    for size in (1, 24, 300):
        company = Company(0)
        for number in range(200 if size == 1 else 24):
            company.beside(torch.full((size, 1, 4, 4), float(number)))
        kept = company.state_dict()["images"][:, 0, 0, 0]
        assert len(kept) == SIZE
        assert len(kept.unique()) > 4
        if size == 300:
            assert float(kept.max()) == 23.0
            assert float(kept.median()) >= 16.0
    assert len(company.state_dict()["layouts"]) <= 8


def test_images_of_another_size_start_anew() -> None:
    """Nothing of one shape is put beside another."""
    company = Company(0)
    company.beside(torch.rand(8, 3, 8, 8))
    assert company.beside(torch.rand(8, 1, 4, 4)) is None
    beside = company.beside(torch.rand(8, 1, 4, 4))
    assert beside is not None
    assert beside.shape == (16, 1, 4, 4)


def test_a_saved_company_goes_on_as_the_original() -> None:
    """Images, what is known of the stream, and the drawing."""
    company, other = Company(0), Company(1)
    for number in range(9):
        company.beside(_pictures(torch.full((40,), number)))
    other.load_state_dict(company.state_dict())
    for number in range(5):
        images = _pictures(torch.full((40,), number))
        found, expected = other.beside(images), company.beside(images)
        assert found is not None
        assert expected is not None
        assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("method", "in_company"), [(sicl.Tent(lr=1e-4), ["network", "anchor"]), (sicl.Source(), ["anchor"])]
)
def test_a_stream_sorted_by_class_is_normalised_in_company(method: Any, in_company: list[str]) -> None:
    """Whoever uses statistics of the batch gets those of the recent images."""
    trusted = sicl.SICL(variants=2).attach(method.attach(small_net()))
    calibration: Any = trusted.calibration
    labels = torch.arange(192) // 32
    for part in _pictures(labels).repeat_interleave(2, dim=3).repeat_interleave(2, dim=2).split(24):
        asked = calibration._whom(part)
    assert calibration.company.state_dict()["mixed"] is False
    assert [who for who, some in asked.items() if all(q.kept for q in some.values())] == in_company


def test_a_witness_that_cannot_keep_statistics_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prediction still comes: of the network itself."""
    trusted = _after_two_batches()

    def refuse(*_: Any) -> Any:
        raise UnsupportedModelError("does not give the same logits")

    monkeypatch.setattr(Witness, "meet", refuse)
    out = trusted(STREAM[128:130])
    assert "say_anchor" not in out.signals
    assert float(out.signals["say_network"]) == pytest.approx(1.0)
    assert bool(out.confidence.isfinite().all())
