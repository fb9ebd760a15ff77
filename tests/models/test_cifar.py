"""The CIFAR networks: sizes, names, normalisation."""

from __future__ import annotations

import pytest
import torch

from sicl.errors import OptionError
from sicl.models.cifar import ARCHITECTURES, resnet18, resnet50
from sicl.models.vit import VisionTransformer, vit_small


@pytest.mark.parametrize(
    ("arch", "n_parameters"),
    [
        ("resnet18", 11_173_962),
        ("resnet50", 23_520_842),
        ("resnet101", 42_512_970),
        ("vit_small", 21_342_346),
    ],
)
def test_full_size_networks_have_the_published_number_of_parameters(arch: str, n_parameters: int) -> None:
    """The counts are those of the papers' networks with a 3x3 stem (or patch 4) and ten classes."""
    with torch.device("meta"):
        model = ARCHITECTURES[arch]()
    assert sum(p.numel() for p in model.parameters()) == n_parameters


def test_the_resnet_has_torchvision_names() -> None:
    """A torchvision state dict's names are exactly ours, so checkpoints move both ways."""
    names = set(resnet50(width=4).state_dict())
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    expected = {"conv1.weight", "fc.weight", "fc.bias", *(f"bn1.{field}" for field in norm)}
    for stage, depth in enumerate((3, 4, 6, 3), start=1):
        for block in (f"layer{stage}.{position}" for position in range(depth)):
            expected |= {f"{block}.conv{i}.weight" for i in (1, 2, 3)}
            expected |= {f"{block}.bn{i}.{field}" for i in (1, 2, 3) for field in norm}
        expected |= {f"layer{stage}.0.downsample.0.weight"}
        expected |= {f"layer{stage}.0.downsample.1.{field}" for field in norm}
    assert names == expected


def test_the_vit_has_timm_names() -> None:
    """A timm ViT's state dict has exactly these names."""
    names = set(vit_small(width=2).state_dict())
    layers = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
    expected = {"cls_token", "pos_embed"}
    expected |= {
        f"{layer}.{field}" for layer in ("patch_embed.proj", "norm", "head") for field in ("weight", "bias")
    }
    expected |= {
        f"blocks.{i}.{layer}.{field}" for i in range(12) for layer in layers for field in ("weight", "bias")
    }
    assert names == expected


def test_stages_keep_halve_and_halve_the_resolution() -> None:
    """The stem and the first stage keep 32 pixels; each later stage halves them and doubles the channels."""
    model = resnet18(width=4).eval()
    features = model.conv1(torch.zeros(1, 3, 32, 32))
    shapes = []
    for stage in (model.layer1, model.layer2, model.layer3, model.layer4):
        features = stage(features)
        shapes.append(tuple(features.shape[1:]))
    assert shapes == [(4, 32, 32), (8, 16, 16), (16, 8, 8), (32, 4, 4)]


@pytest.mark.parametrize("arch", ["resnet18", "vit_small"])
def test_normalisation_happens_inside_the_network(arch: str) -> None:
    """Normalising outside with a neutral network gives what the network does by itself."""
    torch.manual_seed(0)
    inside = ARCHITECTURES[arch](width=4, mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)).eval()
    neutral = ARCHITECTURES[arch](width=4, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)).eval()
    neutral.load_state_dict(inside.state_dict())
    images = torch.rand(3, 3, 32, 32)
    mean, std = torch.tensor([0.1, 0.2, 0.3]).view(3, 1, 1), torch.tensor([0.5, 0.6, 0.7]).view(3, 1, 1)
    torch.testing.assert_close(inside(images), neutral((images - mean) / std))
    assert not torch.allclose(inside(images), neutral(images), atol=1e-3)


def test_attention_equals_its_formula() -> None:
    """The fused attention is softmax(q k / sqrt(d)) v, head by head."""
    torch.manual_seed(0)
    attention = vit_small(width=4).blocks[0].attn
    tokens = torch.randn(2, 5, 24)
    q, k, v = attention.qkv(tokens).view(2, 5, 3, 6, 4).permute(2, 0, 3, 1, 4)
    expected = ((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).reshape(2, 5, 24)
    torch.testing.assert_close(attention(tokens), attention.proj(expected))


def test_a_patch_that_does_not_divide_the_image_is_refused() -> None:
    """The error names the argument, the rule and the value."""
    with pytest.raises(OptionError, match="`patch` must divide `image_size` = 32, got 5"):
        VisionTransformer(
            image_size=32, patch=5, dim=8, depth=1, n_heads=2, n_classes=2, mean=(0, 0, 0), std=(1, 1, 1)
        )


def test_a_width_of_zero_is_refused() -> None:
    """Sizes are checked when the network is built."""
    with pytest.raises(OptionError, match="`width` must be > 0, got 0"):
        resnet18(width=0)
