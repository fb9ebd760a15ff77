"""What sets the kinds of streams apart, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sicl.corruptions import CORRUPTIONS
from sicl.data import Dataset, load_dataset
from sicl.errors import DataError, InputError, OptionError
from sicl.streams import Benign, Continual, Dynamic, Mixed, Noisy, make_stream
from sicl.streams.plan import dirichlet_order, runs


def test_continual_plays_the_corruptions_in_turn(painted: Dataset) -> None:
    """Fifteen runs, in the paper's order."""
    plan = Continual(per_corruption=10).plan(painted)
    assert [plan.domains[domain] for _, _, domain in runs(plan.domain_ids)] == list(CORRUPTIONS)
    assert {length for _, length, _ in runs(plan.domain_ids)} == {10}


def test_mixed_leaves_no_trace_of_time(painted: Dataset) -> None:
    """Neighbours share their corruption about once in fifteen."""
    plan = Mixed().plan(painted)
    shared = float((np.diff(plan.domain_ids) == 0).mean())
    assert shared == pytest.approx(1 / 15, abs=0.03)


def test_dynamic_has_runs_of_varying_length(painted: Dataset) -> None:
    """More runs than corruptions, far fewer than samples, and not all alike."""
    plan = Dynamic().plan(painted)
    lengths = [length for _, length, _ in runs(plan.domain_ids)]
    assert 15 < len(lengths) < len(plan) / 5
    assert max(lengths) > 5 * min(lengths)
    assert np.bincount(plan.domain_ids).tolist() == [120] * 15


def test_gamma_sets_how_long_runs_are(painted: Dataset) -> None:
    """A large gamma spreads every corruption over all slots, a small one keeps it together."""
    counts = [len(runs(Dynamic(gamma=gamma).plan(painted).domain_ids)) for gamma in (0.01, 0.3, 100.0)]
    assert counts[0] < counts[1] < counts[2]
    assert counts[2] > 200


def test_dirichlet_order_deals_shares_to_slots() -> None:
    """With a huge gamma every slot gets an equal share of every group: slots are visible as blocks."""
    groups = np.repeat([0, 1], 50)
    order = dirichlet_order(groups, gamma=1e7, slots=5, generator=np.random.default_rng(0))
    assert sorted(order.tolist()) == list(range(100))
    for block in np.split(groups[order], 5):
        assert block.sum() == 10
        assert len(runs(block)) == 2


def test_dirichlet_order_keeps_the_order_within_a_group() -> None:
    """Segments of a group follow one another as they were given."""
    groups = np.random.default_rng(0).integers(0, 4, 200)
    order = dirichlet_order(groups, gamma=0.5, slots=7, generator=np.random.default_rng(1))
    for group in range(4):
        members = order[groups[order] == group]
        assert (np.diff(members) > 0).all()


def test_label_order_brings_classes_in_runs(painted: Dataset) -> None:
    """Neighbours share their class far more often than in i.i.d. order."""

    def shared(order: str) -> float:
        plan = Benign(order=order).plan(painted)
        return float((np.diff(painted.labels[plan.positions]) == 0).mean())

    assert shared("iid") < 0.25
    assert shared("label") > 0.6


def test_an_order_is_fixed_for_good(painted: Dataset) -> None:
    """The published results depend on these orders: a change of them must be noticed."""
    assert Benign(corruption="fog").plan(painted).positions[:6].tolist() == GOLDEN_BENIGN
    plan = Dynamic().plan(painted)
    assert [plan.domains[domain] for _, _, domain in runs(plan.domain_ids)][:4] == GOLDEN_DYNAMIC


GOLDEN_BENIGN = [66, 5, 73, 38, 22, 20]
GOLDEN_DYNAMIC = ["elastic_transform", "impulse_noise", "frost", "shot_noise"]


def test_noisy_has_the_asked_share_of_ood(painted: Dataset) -> None:
    """Share counts the whole stream, and OOD samples are scattered over it."""
    stream = Noisy(base=Benign(corruption="fog"), ood="noise", share=0.25)
    labels = torch.cat([batch.labels for batch in stream.open(painted)])
    assert float((labels == -1).float().mean()) == pytest.approx(0.25, abs=0.005)
    assert (labels[:80] == -1).any()
    assert (labels[-80:] == -1).any()


def test_noisy_keeps_the_order_of_its_base(painted: Dataset) -> None:
    """Taking the OOD samples away gives the base stream back."""
    base = Dynamic(per_corruption=30)
    noisy, plain = Noisy(base=base, share=0.5).plan(painted), base.plan(painted)
    np.testing.assert_array_equal(noisy.positions[~noisy.is_ood()], plain.positions)
    np.testing.assert_array_equal(noisy.domain_ids[~noisy.is_ood()], plain.domain_ids)


def test_ood_images_take_the_size_of_the_stream(painted: Dataset) -> None:
    """Noise is drawn at the stream's size, pictures of another set are resized and start over when used up."""
    other = load_dataset("demo").subset(np.arange(3))
    stream = Noisy(base=Benign(corruption="fog"), ood="demo", share=0.5)
    batches = list(stream.open(painted, ood=other))
    ood = torch.cat([batch.images[batch.labels == -1] for batch in batches])
    assert ood.shape == (120, 3, 8, 8)
    assert torch.equal(ood[0], ood[3])
    assert not torch.equal(ood[0], ood[1])
    assert {domain for batch in batches for domain in batch.domains} == {"fog", "ood:demo"}


def test_a_missing_ood_set_is_reported_when_the_stream_is_opened(painted: Dataset, tmp_path: object) -> None:
    """Not after an hour of adaptation."""
    with pytest.raises(DataError, match="sicl data get mnist"):
        Noisy(ood="mnist").open(painted, root=str(tmp_path))


def test_corruption_seed_changes_pixels_only(plain: Dataset) -> None:
    """Order and corruption noise have seeds of their own."""
    first = next(iter(Benign(corruption="gaussian_noise").open(plain)))
    second = next(iter(Benign(corruption="gaussian_noise", corruption_seed=1).open(plain)))
    assert torch.equal(first.labels, second.labels)
    assert not torch.equal(first.images, second.images)


def test_make_stream_reads_a_configuration() -> None:
    """Lists become tuples, and the options of a noisy stream find their place."""
    assert make_stream("continual", corruptions=["fog", "snow"]) == Continual(corruptions=("fog", "snow"))
    noisy = make_stream("noisy", base="dynamic", gamma=0.5, ood="mnist", share=0.1)
    assert noisy == Noisy(base=Dynamic(gamma=0.5), ood="mnist", share=0.1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Benign(corruption="frogg"), r"`corruption` must be one of .*Did you mean"),
        (lambda: Benign(severity=6), r"`severity` must lie in \[1, 5\], got 6"),
        (lambda: Benign(batch_size=0), "`batch_size` must be > 0, got 0"),
        (lambda: Benign(n=0), "`n` must be > 0, got 0"),
        (lambda: Benign(order="sorted"), "`order` must be one of iid, label; got 'sorted'"),
        (lambda: Benign(seed=-1), "`seed` must lie in"),
        (lambda: Continual(corruptions=()), "`corruptions` must be a tuple of at least one"),
        (lambda: Continual(corruptions="fog"), "`corruptions` must be a tuple, each item a string"),
        (lambda: Continual(corruptions=("fog", "fog")), "`corruptions` must name each corruption once"),
        (lambda: Dynamic(gamma=0), "`gamma` must be > 0, got 0"),
        (lambda: Dynamic(slots=0), "`slots` must be > 0, got 0"),
        (lambda: Noisy(share=1.0), r"`share` must lie in \[0, 1\), got 1.0"),
        (lambda: Noisy(base=Noisy()), "`base` must be a stream without out-of-distribution samples"),
        (lambda: make_stream("dynamics"), r"`stream` must be one of .*Did you mean 'dynamic'"),
        (
            lambda: make_stream("benign", corruptions=("fog",)),
            r"no option 'corruptions'.*Did you mean 'corruption'",
        ),
    ],
)
def test_a_wrong_spec_is_refused_when_made(make: object, message: str) -> None:
    """Argument, rule and value are in the message."""
    with pytest.raises(OptionError, match=message):
        make()  # type: ignore[operator]


def test_more_images_than_there_are_is_refused(painted: Dataset) -> None:
    """A stream never repeats images to reach a number."""
    with pytest.raises(InputError, match="asks for 121 images of each corruption, but painted has 120"):
        Benign(n=121).open(painted)


def test_an_empty_data_set_is_refused(painted: Dataset) -> None:
    """There would be nothing to stream."""
    with pytest.raises(InputError, match="has no images"):
        Benign().open(painted.subset(np.empty(0, np.int64)))
