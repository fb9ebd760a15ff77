"""On the embedded model and images, adaptation beats no adaptation under noise."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

import sicl
from sicl.adapt import METHODS
from sicl.data import source_data
from sicl.data.load import load_demo
from sicl.streams import Benign

N, BATCH = 384, 64
WARM_UP = 192
"""RoTTA and SoTTA start from the source's statistics, so the first batches are theirs to lose."""


FEWER = {"cotta": {"views": 2}}
"""Thirty-two views take minutes on a CPU."""


@functools.cache
def noisy_images(strength: float = 0.1) -> tuple[Tensor, Tensor]:
    data = load_demo("test")
    images = torch.from_numpy(data.images[:N]).permute(0, 3, 1, 2).float() / 255
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(0))
    return (images + strength * noise).clamp(0, 1), torch.from_numpy(data.labels[:N])


@functools.cache
def accuracy(name: str) -> float:
    """The share of right predictions after the warm-up, which the two without memory of it skip."""
    images, labels = noisy_images()
    validation = load_demo("val")
    source = sicl.SourceData(
        torch.from_numpy(validation.images[:128]).permute(0, 3, 1, 2).float() / 255,
        torch.from_numpy(validation.labels[:128]),
    )
    adapter = (
        METHODS[name]
        .for_dataset("demo", **FEWER.get(name, {}))
        .attach(sicl.load_model("demo"), source=source)
    )
    first = WARM_UP if name in ("source", "batchnorm") else 0
    right = [
        adapter(images[i : i + BATCH]).argmax(dim=1) == labels[i : i + BATCH] for i in range(first, N, BATCH)
    ]
    return float(torch.cat(right)[WARM_UP - N :].float().mean())


COSTLY = ("come", "deyo", "cotta")
"""Like TENT in what they show here, or too dear for every run."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in COSTLY else ())
        for name in METHODS
        if name not in ("source", "lame")
    ],
)
def test_adaptation_beats_the_source_model_under_noise(name: str) -> None:
    """By a wide margin, and none is more than three points below plain batch statistics."""
    assert accuracy(name) > accuracy("source") + 0.1
    assert accuracy(name) >= accuracy("batchnorm") - 0.03


def test_lame_pays_where_classes_come_in_runs_and_harms_where_they_do_not() -> None:
    """Its authors' claim, and the reason why it is no default."""
    images, labels = (part[:192] for part in noisy_images(0.04))
    order = labels.argsort()
    lame, source = (kind().attach(sicl.load_model("demo")) for kind in (sicl.Lame, sicl.Source))
    right = {
        (adapter.spec, name): float(torch.cat(said).eq(labels[rows]).float().mean())
        for name, rows in (("sorted", order), ("shuffled", torch.arange(len(labels))))
        for adapter in (lame, source)
        for said in [[adapter(part).argmax(dim=1) for part in images[rows].split(16)]]
    }
    assert right[lame.spec, "sorted"] > right[source.spec, "sorted"]
    assert right[lame.spec, "shuffled"] < right[source.spec, "shuffled"]


@functools.cache
def long_accuracy(name: str) -> float:
    """The share of right predictions on the whole of 4,500 noisy images: three passes with other noise."""
    source = source_data(load_demo("val"))
    adapter = (
        METHODS[name]
        .for_dataset("demo", **FEWER.get(name, {}))
        .attach(sicl.load_model("demo"), source=source)
    )
    right = []
    for seed in range(3):
        for batch in Benign(corruption="gaussian_noise", seed=seed, corruption_seed=seed).open(
            load_demo("test")
        ):
            right.append(adapter(batch.images).argmax(dim=1) == batch.labels)
    return float(torch.cat(right).float().mean())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("source", "lame")])
def test_no_method_falls_behind_batch_statistics_on_a_whole_long_stream(name: str) -> None:
    """From the first image on, RoTTA's slow start included, none is more than three points below."""
    assert long_accuracy(name) >= long_accuracy("batchnorm") - 0.03
