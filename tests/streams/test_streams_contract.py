"""The laws every stream keeps."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from sicl.corruptions import CORRUPTIONS
from sicl.data import Dataset
from sicl.streams import STREAMS, Benign, Continual, Dynamic, Mixed, Noisy, Ordered, Stream
from sicl.types import OOD_LABEL, Batch

TARGETS: dict[str, Stream] = {
    "benign": Benign(corruption="fog", batch_size=16),
    "benign, 50 images": Benign(corruption="fog", batch_size=16, n=50),
    "benign, by label": Benign(corruption="fog", batch_size=16, order="label"),
    "clean": Benign(corruption="clean", batch_size=16),
    "continual": Continual(batch_size=16, per_corruption=20),
    "continual, by label": Continual(batch_size=16, per_corruption=20, order="label"),
    "mixed": Mixed(batch_size=16, per_corruption=20),
    "mixed, by label": Mixed(batch_size=16, per_corruption=20, order="label"),
    "dynamic": Dynamic(batch_size=16, per_corruption=20, slots=5),
    "dynamic, by label": Dynamic(batch_size=16, per_corruption=20, order="label"),
    "noisy": Noisy(base=Benign(corruption="fog", batch_size=16), share=0.4),
    "noisy dynamic": Noisy(base=Dynamic(batch_size=16, per_corruption=20), share=0.2),
}


@pytest.fixture(params=list(TARGETS))
def stream(request: pytest.FixtureRequest) -> Stream:
    """One of the streams."""
    return TARGETS[request.param]


def _joined(batches: list[Batch]) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    domains = [domain for batch in batches for domain in batch.domains]
    return torch.cat([b.images for b in batches]), torch.cat([b.labels for b in batches]), domains


def _reseeded(stream: Stream, seed: int) -> Stream:
    if isinstance(stream, Noisy):
        return dataclasses.replace(stream, base=_reseeded(stream.base, seed))
    assert isinstance(stream, Ordered)
    return dataclasses.replace(stream, seed=seed)


def test_every_kind_is_under_contract() -> None:
    """The targets cover the registry."""
    assert {type(stream) for stream in TARGETS.values()} == set(STREAMS.values())


def test_batches_have_the_promised_form(stream: Stream, painted: Dataset) -> None:
    """float32 N x 3 x H x W in [0, 1], int64 labels, one domain a sample; only the last batch is short."""
    batches = list(stream.open(painted))
    for batch in batches:
        assert batch.images.dtype == torch.float32
        assert batch.images.shape == (len(batch), 3, 8, 8)
        assert batch.images.is_contiguous()
        assert batch.labels.dtype == torch.int64
        assert 0 <= float(batch.images.min()) <= float(batch.images.max()) <= 1
        assert len(batch.domains) == len(batch.labels)
    assert {len(batch) for batch in batches[:-1]} == {16}
    assert 0 < len(batches[-1]) <= 16


def test_len_is_the_number_of_batches(stream: Stream, painted: Dataset) -> None:
    """It is known before the first image is read."""
    opened = stream.open(painted)
    expected = len(opened), opened.n_samples
    batches = list(opened)
    assert expected == (len(batches), sum(map(len, batches)))


def test_image_label_and_domain_belong_together(stream: Stream, painted: Dataset) -> None:
    """The painted index, corruption and severity agree with label and domain."""
    images, labels, domains = _joined(list(stream.open(painted)))
    pixels = (images * 255).round().long()
    for image, label, domain in zip(pixels, labels.tolist(), domains):
        if label == OOD_LABEL:
            assert domain.startswith("ood:")
            continue
        assert painted.labels[image[0, 0, 0]] == label
        if domain != "clean":
            assert CORRUPTIONS[image[0, 0, 1]] == domain
            assert image[0, 0, 2] == 5


def test_every_domain_plays_each_image_at_most_once(stream: Stream, painted: Dataset) -> None:
    """Sampling is without replacement."""
    plan = stream.plan(painted)
    known = ~plan.is_ood()
    pairs = list(zip(plan.domain_ids[known].tolist(), plan.positions[known].tolist()))
    assert len(set(pairs)) == len(pairs)


def test_the_same_seed_gives_the_same_stream(stream: Stream, painted: Dataset) -> None:
    """Two openings, and two iterations of one, are equal bit for bit."""
    opened = stream.open(painted)
    first, again = _joined(list(opened)), _joined(list(opened))
    other = _joined(list(dataclasses.replace(stream).open(painted, prefetch=False)))
    for played in (again, other):
        assert torch.equal(first[0], played[0])
        assert torch.equal(first[1], played[1])
        assert first[2] == played[2]


def test_another_seed_gives_another_order(stream: Stream, painted: Dataset) -> None:
    """The seed matters, and with it nothing else changes: as many samples of each domain."""
    first, second = stream.plan(painted), _reseeded(stream, 1).plan(painted)
    assert not np.array_equal(first.positions, second.positions)
    assert np.array_equal(np.bincount(first.domain_ids), np.bincount(second.domain_ids))


def test_the_batch_size_does_not_change_the_order(stream: Stream, painted: Dataset) -> None:
    """Batches cut the same sequence at other places."""
    base = stream.base if isinstance(stream, Noisy) else stream
    assert isinstance(base, Ordered)
    wider = dataclasses.replace(base, batch_size=37)
    other = dataclasses.replace(stream, base=wider) if isinstance(stream, Noisy) else wider
    assert torch.equal(_joined(list(stream.open(painted)))[0], _joined(list(other.open(painted)))[0])


def test_global_random_state_is_left_alone(stream: Stream, painted: Dataset) -> None:
    """Streams neither use nor move torch's and numpy's own generators."""
    torch.manual_seed(1)
    before = torch.get_rng_state()
    list(stream.open(painted))
    assert torch.equal(before, torch.get_rng_state())


def test_specs_are_keys(stream: Stream) -> None:
    """Equal specs hash alike, so a spec can name a cached result."""
    assert hash(stream) == hash(dataclasses.replace(stream))
    assert stream == dataclasses.replace(stream)


def test_a_stream_may_be_left_early(stream: Stream, painted: Dataset) -> None:
    """Breaking out of the loop ends cleanly, and the next iteration starts over."""
    opened = stream.open(painted)
    first = next(iter(opened))
    assert torch.equal(first.images, next(iter(opened)).images)
