"""Fixtures that tests of several rooms share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture
def exact_convolutions() -> Iterator[None]:
    """Let a GPU's convolutions compute in full float32, so that devices and engines can be compared."""
    import torch

    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before
