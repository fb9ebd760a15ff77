"""Finding the classifier head and the features that enter it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sicl.engine.head import find_head, penultimate
from sicl.errors import OptionError, UnsupportedModelError
from sicl.models.cifar import resnet18
from sicl.models.vit import VisionTransformer


def _images(size: int = 16) -> Tensor:
    return torch.rand(3, 3, size, size, generator=torch.Generator().manual_seed(0))


def _vit() -> nn.Module:
    half = (0.5,) * 3
    return VisionTransformer(
        image_size=16, patch=8, dim=12, depth=2, n_heads=2, n_classes=5, mean=half, std=half
    )


class HeadFirst(nn.Module):
    """Defines its head before its body, calls it by keyword, and has a layer it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.classifier = nn.Linear(6, 4)
        self.body = nn.Linear(12, 6)
        self.unused = nn.Linear(6, 2)

    def forward(self, images: Tensor) -> Any:
        features = self.body(images.mean(3).mean(1)[:, :12])
        return SimpleNamespace(logits=self.classifier(input=features))


@pytest.mark.parametrize(
    ("model", "head", "width"),
    [(resnet18(width=2), "fc", 16), (_vit(), "head", 12), (HeadFirst(), "classifier", 6)],
    ids=["resnet", "vit", "logits object"],
)
def test_the_head_is_the_last_linear_layer_called(model: nn.Module, head: str, width: int) -> None:
    """Whatever the order of definition; its input gives the logits again."""
    model.eval()
    assert find_head(model, _images()) == head
    features, logits = penultimate(model, head, _images())
    assert features.shape == (3, width)
    torch.testing.assert_close(model.get_submodule(head)(features), logits)


def test_no_hook_stays_behind_when_the_model_fails() -> None:
    """Neither function leaves a trace on a model that raises."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(7, 2))
    for call in (lambda: find_head(model, _images()), lambda: penultimate(model, "1", _images())):
        with pytest.raises(RuntimeError):
            call()
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


@pytest.mark.parametrize("shape", [(3, 5, 2, 2), (3, 4, 5)])
def test_maps_and_tokens_are_averaged(shape: tuple[int, ...]) -> None:
    """Features are N x D for any module that is named."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.here = nn.Identity()

        def forward(self, _images: Tensor) -> Tensor:
            out: Tensor = self.here(torch.ones(shape)).flatten(1)
            return out

    assert penultimate(Named(), "here", _images())[0].shape == (3, 5)


def test_a_model_without_linear_layers_is_refused() -> None:
    """The message says what to do instead."""
    model = nn.Sequential(nn.Conv2d(3, 4, 16), nn.Flatten())
    with pytest.raises(UnsupportedModelError, match="calls no linear layer"):
        find_head(model, _images())


def test_an_unknown_name_suggests_the_nearest() -> None:
    """A misspelt head is corrected."""
    with pytest.raises(OptionError, match="Did you mean 'fc'"):
        penultimate(resnet18(width=2), "fcc", _images())


def test_a_module_that_is_never_called_is_refused() -> None:
    """It has no input to give."""
    with pytest.raises(UnsupportedModelError, match="never called its module 'unused'"):
        penultimate(HeadFirst(), "unused", _images())
