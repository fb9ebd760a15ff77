"""Calibrators follow the model to a CUDA device."""

from __future__ import annotations

import pytest
import torch
from calibrate_networks import SPECS, images, small_net, source_data

import sicl

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:.*cannot determine a temperature"),
]


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_confidence_is_on_the_device_and_reproducible(name: str, where: str) -> None:
    """Images and source data may come from either device; two attachments agree bit for bit."""
    model = small_net()
    source = source_data(model)
    source = sicl.SourceData(source.images.to(where), source.labels.to(where))
    model = model.cuda()
    first, second = (SPECS[name].attach(sicl.Tent().attach(model), source=source) for _ in range(2))
    for seed in (1, 2, 3):
        out, again = first(images(seed=seed).to(where)), second(images(seed=seed).to(where))
        assert out.confidence.is_cuda
        assert bool(torch.isfinite(out.confidence).all())
        assert torch.equal(out.confidence, again.confidence)


@pytest.mark.parametrize("name", ["temperature_scaling", "pseudocal", "transcal"])
def test_fits_agree_with_the_cpu(name: str) -> None:
    """The same data give nearly the same confidence on both devices."""
    model = small_net()
    source = source_data(model)
    here = SPECS[name].attach(model, source=source)
    there = SPECS[name].attach(model.cuda(), source=source)
    for seed in (1, 2):
        torch.testing.assert_close(
            here(images(seed=seed)).confidence, there(images(seed=seed)).confidence.cpu(), atol=0.02, rtol=0
        )
