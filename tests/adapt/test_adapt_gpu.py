"""Every method runs on a CUDA device, in both memory layouts, and gives there what it gives on a CPU."""

from __future__ import annotations

import pytest
import torch

import sicl
from sicl.adapt import METHODS
from sicl.adapt._parameters import use_batch_statistics
from sicl.adapt._views import mean_over_views
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
def test_a_state_from_a_cpu_goes_on_on_a_gpu(name: str) -> None:
    """And the other way round: every part finds its device."""
    images = torch.rand(32, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    adapters = {}
    for device in ("cpu", "cuda"):
        source = source_data(load_dataset("demo", split="val"), n=64, device=device)
        adapters[device] = METHODS[name]().attach(sicl.load_model("demo", device=device), source=source)
    for here, there in (("cpu", "cuda"), ("cuda", "cpu")):
        adapters[here](images.to(here))
        adapters[there].load_state_dict(adapters[here].state_dict())
        assert bool(torch.isfinite(adapters[there](images.to(there))).all())


def test_views_in_one_batch_are_views_one_by_one() -> None:
    """Through the kernels of stacked batches."""
    network = sicl.load_model("demo", device="cuda").requires_grad_(False)
    use_batch_statistics(network)
    images = torch.rand(48, 3, 32, 32, generator=torch.Generator().manual_seed(0)).cuda()
    one, many = (
        mean_over_views(network, images, 8, torch.Generator().manual_seed(0), at_once) for at_once in (1, 8)
    )
    torch.testing.assert_close(many, one, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_methods_agree_with_the_cpu(name: str, layout: torch.memory_format) -> None:
    """Labels of nearly all images are the same; random augmentations may differ between devices."""
    there = logits_of_a_stream(name, "cuda", layout)
    here = logits_of_a_stream(name, "cpu", torch.contiguous_format)
    assert bool(torch.isfinite(there).all())
    assert float((there.argmax(1) == here.argmax(1)).float().mean()) > 0.97
