"""Corruptions on a CUDA device."""

from __future__ import annotations

import pytest
import torch

from sicl.corruptions import CORRUPTIONS, VALIDATION_CORRUPTIONS, corrupt

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("side", [32, 224])
@pytest.mark.parametrize("name", [*CORRUPTIONS, *VALIDATION_CORRUPTIONS])
def test_gpu_and_cpu_give_the_same_bytes(name: str, side: int) -> None:
    """A device changes no value, at any severity."""
    images = torch.randint(0, 256, (6, side, side, 3), generator=torch.Generator().manual_seed(0)).to(
        torch.uint8
    )
    for severity in range(1, 6):
        on_cpu = corrupt(images, name, severity=severity)
        on_gpu = corrupt(images.cuda(), name, severity=severity)
        assert on_gpu.device.type == "cuda"
        assert torch.equal(on_cpu, on_gpu.cpu())
