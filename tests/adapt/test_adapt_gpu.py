"""Every method runs on a CUDA device, in both memory layouts, and gives there what it gives on a CPU."""

from __future__ import annotations

import pytest
import torch

import sicl
from sicl.adapt import METHODS
from sicl.data import load_dataset, source_data

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("exact_convolutions"),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def logits_of_a_stream(name: str, device: str, layout: torch.memory_format) -> torch.Tensor:
    """Logits of three batches of real images."""
    data = load_dataset("demo")
    model = sicl.load_model("demo", device=device).to(memory_format=layout)
    source = source_data(load_dataset("demo", split="val"), n=200, device=device)
    adapter = METHODS[name]().attach(model, source=source)
    pixels = torch.from_numpy(data.images[:144].copy()).permute(0, 3, 1, 2).float() / 255
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return torch.cat([adapter(part.to(device)).cpu() for part in pixels.split(48)])


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_methods_agree_with_the_cpu(name: str, layout: torch.memory_format) -> None:
    """Labels of nearly all images are the same; random augmentations may differ between devices."""
    there = logits_of_a_stream(name, "cuda", layout)
    here = logits_of_a_stream(name, "cpu", torch.contiguous_format)
    assert bool(torch.isfinite(there).all())
    assert float((there.argmax(1) == here.argmax(1)).float().mean()) > 0.97
