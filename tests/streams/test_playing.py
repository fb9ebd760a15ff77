"""Streams are lazy, flat in memory, and cache what they had to make."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch

from sicl.data import Dataset
from sicl.streams import Benign, Dynamic, ImageCache, Mixed
from sicl.streams.stream import CHUNK_BYTES


class Large:
    """10,000 images of 224 pixels that exist only while they are read."""

    shape = (10_000, 224, 224, 3)

    def __init__(self) -> None:
        self.read = 0

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        """Make the images asked for."""
        self.read += len(positions)
        return np.broadcast_to(
            (positions % 256).astype(np.uint8)[:, None, None, None], (len(positions), 224, 224, 3)
        )


def test_ten_thousand_large_images_never_sit_in_memory() -> None:
    """Playing 10,000 images of 224 pixels (6 GB as floats) holds two chunks of bytes at a time."""
    images = Large()
    dataset = Dataset("large", images, np.zeros(10_000, np.int64))
    opened = Benign(corruption="clean", n=10_000, batch_size=64).open(dataset)
    tracemalloc.start()
    for _, batch in zip(range(12), opened):
        del batch
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * CHUNK_BYTES
    assert images.read < 2_000


def test_nothing_is_read_before_it_is_needed() -> None:
    """Opening reads no image; the first batch reads at most two chunks."""
    images = Large()
    opened = Benign(corruption="clean").open(Dataset("large", images, np.zeros(10_000, np.int64)))
    assert images.read == 0
    next(iter(opened))
    assert 0 < images.read * 150_528 <= 2 * CHUNK_BYTES + 2 * 64 * 150_528


def test_reading_ahead_changes_nothing(plain: Dataset) -> None:
    """With and without the second thread the batches are equal."""
    stream = Mixed(corruptions=("fog", "contrast"), per_corruption=20, batch_size=7)
    for first, second in zip(stream.open(plain), stream.open(plain, prefetch=False), strict=True):
        assert torch.equal(first.images, second.images)


def test_an_error_while_reading_ahead_reaches_the_caller() -> None:
    """A broken file is not lost in the second thread."""

    class Broken(Large):
        def __getitem__(self, positions: np.ndarray) -> np.ndarray:
            raise OSError("the disk is gone")

    opened = Benign(corruption="clean").open(Dataset("broken", Broken(), np.zeros(10_000, np.int64)))
    with pytest.raises(OSError, match="the disk is gone"):
        next(iter(opened))


@pytest.fixture(params=["memory", "disk"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> ImageCache:
    """A cache of either kind."""
    return ImageCache(tmp_path / "cache" if request.param == "disk" else None)


STREAM = Dynamic(corruptions=("gaussian_noise", "contrast"), per_corruption=30, batch_size=16, slots=3)


def test_a_cached_stream_is_the_same_stream(plain: Dataset, cache: ImageCache) -> None:
    """Filling and reading the cache both give what is made without it."""
    expected = [batch.images for batch in STREAM.open(plain)]
    for _ in range(2):
        played = [batch.images for batch in STREAM.open(plain, cache=cache)]
        assert all(torch.equal(first, second) for first, second in zip(expected, played, strict=True))


def test_a_cached_stream_is_not_made_again(
    plain: Dataset, cache: ImageCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second run corrupts no image."""
    list(STREAM.open(plain, cache=cache))
    monkeypatch.setattr("sicl.corruptions.corrupt", lambda *a, **k: pytest.fail("corrupted again"))
    list(STREAM.open(plain, cache=cache))


def test_other_images_severities_and_seeds_are_other_entries(plain: Dataset, tmp_path: Path) -> None:
    """Nothing is mixed up: each variation writes arrays of its own."""
    streams = [
        Benign(corruption="contrast", n=20),
        Benign(corruption="contrast", n=21),
        Benign(corruption="contrast", n=20, severity=3),
        Benign(corruption="contrast", n=20, corruption_seed=1),
        Benign(corruption="brightness", n=20),
    ]
    for number, stream in enumerate(streams, 1):
        list(stream.open(plain, cache=tmp_path))
        assert len(list(tmp_path.glob("*.npy"))) == number


def test_a_damaged_entry_is_made_again(plain: Dataset, tmp_path: Path) -> None:
    """A cut cache file is replaced, not believed."""
    expected = [batch.images for batch in STREAM.open(plain, cache=tmp_path)]
    for path in tmp_path.glob("*.npy"):
        path.write_bytes(path.read_bytes()[:-10])
    played = [batch.images for batch in STREAM.open(plain, cache=tmp_path)]
    assert all(torch.equal(first, second) for first, second in zip(expected, played, strict=True))


def test_an_interrupted_entry_leaves_nothing(
    plain: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure while filling leaves no array that a later run would take for whole."""

    def fail(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sicl.corruptions.corrupt", fail)
    with pytest.raises(KeyboardInterrupt):
        list(STREAM.open(plain, cache=tmp_path, prefetch=False))
    assert list(tmp_path.iterdir()) == []


def test_the_cache_stays_within_its_bound(plain: Dataset, tmp_path: Path) -> None:
    """The oldest entries go when a new one would not fit; both kinds of cache."""
    bound = 2 * 20 * 32 * 32 * 3 + 1000
    memory, disk = ImageCache(max_bytes=bound), ImageCache(tmp_path, max_bytes=bound)
    for name in ("contrast", "brightness", "pixelate"):
        for cache in (memory, disk):
            list(Benign(corruption=name, n=20).open(plain, cache=cache))
    assert sum(array.nbytes for array in memory._memory.values()) <= bound
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= bound
    assert not list(tmp_path.glob("*contrast*"))


def test_a_stream_larger_than_the_cache_goes_without(plain: Dataset, tmp_path: Path) -> None:
    """It plays all the same, and writes nothing."""
    cache = ImageCache(tmp_path, max_bytes=1000)
    assert len(list(STREAM.open(plain, cache=cache))) == 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_changes_the_place_only(plain: Dataset) -> None:
    """Batches made on a GPU are there, with the same labels and, up to a rounding, the same pixels."""
    stream = Mixed(per_corruption=20, batch_size=32)
    for here, there in zip(stream.open(plain), stream.open(plain, device="cuda"), strict=True):
        assert there.images.is_cuda
        assert there.labels.is_cuda
        assert torch.equal(here.labels, there.labels.cpu())
        difference = (here.images - there.images.cpu()).abs()
        assert float((difference > 1.5 / 255).float().mean()) < 1e-3
