"""EfficientNet-Lite for ImageNet: inverted residuals with ReLU6 and no squeezing, under timm's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sicl.models.preprocess import FromPixels, normalised

_STAGES = (
    (3, 1, 1, 16),
    (3, 2, 6, 24),
    (5, 2, 6, 40),
    (3, 2, 6, 80),
    (5, 1, 6, 112),
    (5, 2, 6, 192),
    (3, 1, 6, 320),
)
"""Kernel, stride, expansion and channels of each stage."""
DEPTHS = {"efficientnet_lite0": (1, 2, 2, 3, 3, 4, 1), "efficientnet_lite1": (1, 3, 3, 4, 4, 5, 1)}
"""Blocks of each stage; both networks have the same widths."""
_EPS = 1e-3


def _same(conv: nn.Conv2d, features: Tensor) -> Tensor:
    """Convolve with TensorFlow's "same" padding, which puts the odd pixel behind."""
    kernel, stride = conv.kernel_size[0], conv.stride[0]
    pads = []
    for length in (features.shape[-1], features.shape[-2]):
        total = max((-(-length // stride) - 1) * stride + kernel - length, 0)
        pads += [total // 2, total - total // 2]
    out: Tensor = conv(F.pad(features, pads))
    return out


class SeparableBlock(nn.Module):
    """A depthwise and a pointwise convolution: the first stage's block."""

    def __init__(self, n_in: int, n_out: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.conv_dw = nn.Conv2d(n_in, n_in, kernel, stride, groups=n_in, bias=False)
        self.bn1 = nn.BatchNorm2d(n_in, eps=_EPS)
        self.act = nn.ReLU6()
        self.conv_pw = nn.Conv2d(n_in, n_out, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(n_out, eps=_EPS)
        self.skip = stride == 1 and n_in == n_out

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.bn2(self.conv_pw(self.act(self.bn1(_same(self.conv_dw, features)))))
        return out + features if self.skip else out


class InvertedResidual(nn.Module):
    """Widen by a pointwise convolution, filter each channel, narrow again (Sandler et al., 2018)."""

    def __init__(self, n_in: int, n_out: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        n_mid = n_in * expansion
        self.conv_pw = nn.Conv2d(n_in, n_mid, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(n_mid, eps=_EPS)
        self.conv_dw = nn.Conv2d(n_mid, n_mid, kernel, stride, groups=n_mid, bias=False)
        self.bn2 = nn.BatchNorm2d(n_mid, eps=_EPS)
        self.conv_pwl = nn.Conv2d(n_mid, n_out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(n_out, eps=_EPS)
        self.act = nn.ReLU6()
        self.skip = stride == 1 and n_in == n_out

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.act(self.bn1(self.conv_pw(features)))
        out = self.act(self.bn2(_same(self.conv_dw, out)))
        out = self.bn3(self.conv_pwl(out))
        return out + features if self.skip else out


class EfficientNetLite(FromPixels):
    """An EfficientNet-Lite (Tan and Le, 2019, in the variant for phones); input in [0, 1].

    Args:
        depths: blocks of each of the seven stages, as in `DEPTHS`.
        n_classes: size of the output.
        mean: per-channel mean taken from the images.
        std: per-channel standard deviation they are divided by.
    """

    def __init__(
        self,
        depths: Sequence[int] = DEPTHS["efficientnet_lite1"],
        *,
        n_classes: int = 1000,
        mean: Sequence[float] = (0.5, 0.5, 0.5),
        std: Sequence[float] = (0.5, 0.5, 0.5),
    ) -> None:
        super().__init__(mean, std)
        self.conv_stem = nn.Conv2d(3, 32, 3, 2, bias=False)
        self.bn1 = nn.BatchNorm2d(32, eps=_EPS)
        self.act = nn.ReLU6()
        widths = (32, *(stage[3] for stage in _STAGES))
        self.blocks = nn.Sequential(
            *(_stage(widths[i], depths[i], *stage) for i, stage in enumerate(_STAGES))
        )
        self.conv_head = nn.Conv2d(widths[-1], 1280, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(1280, eps=_EPS)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(1280, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        out = self.act(self.bn1(_same(self.conv_stem, normalised(images, self.mean, self.std))))
        out = self.act(self.bn2(self.conv_head(self.blocks(out))))
        logits: Tensor = self.classifier(torch.flatten(self.avgpool(out), 1))
        return logits


def _stage(n_in: int, depth: int, kernel: int, stride: int, expansion: int, n_out: int) -> nn.Sequential:
    blocks: list[nn.Module] = []
    for index in range(depth):
        shape = (n_out if index else n_in, n_out, kernel, 1 if index else stride)
        blocks.append(SeparableBlock(*shape) if expansion == 1 else InvertedResidual(*shape, expansion))
    return nn.Sequential(*blocks)


def find_lite(state: Mapping[str, Tensor]) -> str | None:
    """Return which EfficientNet-Lite the tensors are of, by stem and number of blocks, else None."""
    stem = state.get("conv_stem.weight", state.get("_conv_stem.weight"))
    if stem is None or tuple(stem.shape) != (32, 3, 3, 3) or any("se." in name for name in state):
        return None
    n_blocks = sum(name.endswith(("conv_dw.weight", "depthwise_conv.weight")) for name in state)
    return next((name for name, depths in DEPTHS.items() if sum(depths) == n_blocks), None)


def timm_names(state: Mapping[str, Tensor], model: EfficientNetLite) -> Mapping[str, Tensor]:
    """Return tensors under timm's names; the packages on PyPI have other names in the same order."""
    own = list(model.state_dict())
    if "conv_stem.weight" in state or len(own) != len(state):
        return state
    return dict(zip(own, state.values()))
