"""The two memories against their rules, written out naively and checked on arbitrary streams."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sicl.adapt._memory import BalancedMemory, ConfidentMemory, due_parts

N_CLASSES = 4
samples = st.lists(
    st.tuples(st.integers(0, N_CLASSES - 1), st.floats(0.0, 1.0, width=32)), min_size=1, max_size=60
)
capacities = st.integers(1, 12)
batch_sizes = st.integers(1, 20)


def images_of(ids: list[int]) -> Tensor:
    """Each image is its sample's number, so that what a memory holds can be read off."""
    return torch.tensor(ids, dtype=torch.float32).view(-1, 1, 1, 1)


def offer(memory: BalancedMemory | ConfidentMemory, stream: list[tuple[int, float]], batch: int) -> int:
    admitted = 0
    for start in range(0, len(stream), batch):
        part = stream[start : start + batch]
        labels = torch.tensor([label for label, _ in part])
        scores = torch.tensor([score for _, score in part], dtype=torch.float32)
        images = images_of(list(range(start, start + len(part))))
        if isinstance(memory, BalancedMemory):
            admitted += memory.offer(images, labels, scores, n_classes=N_CLASSES)
        else:
            admitted += memory.offer(images, labels, scores)
    return admitted


def held(memory: BalancedMemory | ConfidentMemory) -> list[int]:
    return [int(i) for i in memory.images.flatten().tolist()] if len(memory) else []


def naive_cstu(stream: list[tuple[int, float]], capacity: int) -> dict[int, int]:
    """RoTTA's rule with ages counted one by one: {sample: age}."""
    ages: dict[int, int] = {}

    def score(i: int) -> float:
        return 1 / (1 + math.exp(-ages.get(i, 0) / capacity)) + stream[i][1]

    for new, (label, _) in enumerate(stream):
        own = [i for i in ages if stream[i][0] == label]
        counts = Counter(stream[i][0] for i in ages)
        candidates: list[int] | None = None
        if len(own) >= capacity / N_CLASSES:
            candidates = own
        elif len(ages) == capacity:
            largest = max(counts.values())
            candidates = [i for i in ages if counts[stream[i][0]] == largest]
        if candidates is not None:
            worst = max(candidates, key=lambda i: (score(i), stream[i][0], i))
            if score(worst) > score(new):
                del ages[worst]
                candidates = None
        if candidates is None:
            ages[new] = 0
        for i in ages:
            ages[i] += 1
    return ages


@settings(max_examples=150, deadline=None)
@given(stream=samples, capacity=capacities, batch=batch_sizes)
def test_the_balanced_memory_follows_the_naive_rule(
    stream: list[tuple[int, float]], capacity: int, batch: int
) -> None:
    """Whatever the batches: the same samples with the same ages as one by one."""
    memory = BalancedMemory(capacity)
    offer(memory, stream, batch)
    assert dict(zip(held(memory), memory.ages)) == naive_cstu(stream, capacity)


@settings(max_examples=100, deadline=None)
@given(stream=samples, capacity=capacities, batch=batch_sizes)
def test_the_balanced_memory_is_bounded_and_balanced(
    stream: list[tuple[int, float]], capacity: int, batch: int
) -> None:
    """Never more than the capacity, and in no class more than its share rounded up."""
    memory = BalancedMemory(capacity)
    offer(memory, stream, batch)
    counts = Counter(memory.labels)
    assert 0 < len(memory) <= capacity
    assert max(counts.values()) <= math.ceil(capacity / N_CLASSES)
    assert [stream[i][0] for i in held(memory)] == memory.labels
    assert [stream[i][1] for i in held(memory)] == pytest.approx(memory.uncertainty)


@settings(max_examples=150, deadline=None)
@given(stream=samples, capacity=capacities, batch=batch_sizes, threshold=st.sampled_from([0.0, 0.3, 0.9]))
def test_the_confident_memory_is_bounded_and_confident(
    stream: list[tuple[int, float]], capacity: int, batch: int, threshold: float
) -> None:
    """It holds min(capacity, confident samples so far), all above the threshold, under their own class."""
    memory = ConfidentMemory(capacity, threshold=threshold, generator=torch.Generator())
    admitted = offer(memory, stream, batch)
    n_confident = sum(score > threshold for _, score in stream)
    assert admitted == n_confident
    assert len(memory) == min(capacity, n_confident)
    assert all(stream[i][1] > threshold for i in held(memory))
    assert [stream[i][0] for i in held(memory)] == memory.labels
    assert len(set(held(memory))) == len(memory)


@settings(max_examples=100, deadline=None)
@given(stream=samples, capacity=capacities)
def test_the_confident_memory_drops_from_a_largest_class(
    stream: list[tuple[int, float]], capacity: int
) -> None:
    """From the sample's own class if that is one of the largest, and only once the memory is full."""
    memory = ConfidentMemory(capacity, threshold=-1.0, generator=torch.Generator())
    for i, (label, score) in enumerate(stream):
        before = held(memory)
        counts = Counter(memory.labels)
        memory.offer(images_of([i]), torch.tensor([label]), torch.tensor([score]))
        dropped = set(before) - set(held(memory))
        assert len(dropped) == (len(before) == capacity)
        for old in dropped:
            largest = {name for name, n in counts.items() if n == max(counts.values())}
            assert stream[old][0] in ({label} if label in largest else largest)


def test_the_confident_memory_draws_from_its_generator() -> None:
    """Two seeds drop different samples, one seed the same."""
    stream = [(i % 2, 1.0) for i in range(60)]
    runs = []
    for seed in (0, 0, 1):
        generator = torch.Generator().manual_seed(seed)
        memory = ConfidentMemory(8, threshold=0.5, generator=generator)
        offer(memory, stream, 7)
        runs.append(sorted(held(memory)))
    assert runs[0] == runs[1] != runs[2]


@settings(max_examples=60, deadline=None)
@given(stream=samples, capacity=capacities, cut=st.integers(0, 60))
def test_a_memory_resumes_where_it_was_saved(
    stream: list[tuple[int, float]], capacity: int, cut: int
) -> None:
    """Order within classes decides later evictions, so it has to survive too."""
    for kind in ("balanced", "confident"):

        def new(kind: str = kind) -> BalancedMemory | ConfidentMemory:
            if kind == "balanced":
                return BalancedMemory(capacity)
            return ConfidentMemory(capacity, threshold=0.2, generator=torch.Generator())

        whole, second = new(), new()
        offer(whole, stream[:cut], 5)
        second.load_state_dict(whole.state_dict())
        if isinstance(whole, ConfidentMemory) and isinstance(second, ConfidentMemory):
            second.generator.set_state(whole.generator.get_state())
        for memory in (whole, second):
            offer(memory, stream[cut:], 5)
        assert held(whole) == held(second)
        assert whole.ages == second.ages
        assert whole.labels == second.labels


@given(seen=st.integers(0, 500), n=st.integers(1, 300), every=st.integers(1, 100))
def test_parts_cover_the_batch_and_end_where_updates_are_due(seen: int, n: int, every: int) -> None:
    """As many due parts as multiples of `every` are passed, each ending on one."""
    parts = list(due_parts(seen, n, every))
    assert [i for part, _ in parts for i in range(part.start, part.stop)] == list(range(n))
    assert sum(due for _, due in parts) == (seen + n) // every - seen // every
    assert all(((seen + part.stop) % every == 0) == due for part, due in parts)


def test_memories_make_no_copies_of_refused_samples() -> None:
    """A batch in which nothing is confident allocates nothing."""
    memory = ConfidentMemory(4, threshold=0.9, generator=torch.Generator())
    memory.offer(images_of([1, 2]), torch.tensor([0, 1]), torch.tensor([0.5, 0.6]))
    assert len(memory) == 0
    with pytest.raises(RuntimeError, match="nothing has been stored"):
        _ = memory.images
