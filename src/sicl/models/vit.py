"""Plain vision transformers with timm's parameter names: a small one for 32 pixels, and any that a file holds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sicl.errors import InputError, OptionError, require_positive
from sicl.models.preprocess import FromPixels, normalised


class PatchEmbed(nn.Module):
    """Cut an image into square patches and map each to a token."""

    def __init__(self, patch: int, dim: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, patch)

    def forward(self, images: Tensor) -> Tensor:
        tokens: Tensor = self.proj(images)
        return tokens.flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Multi-head self-attention over the tokens of one image."""

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        n, length, dim = tokens.shape
        qkv = self.qkv(tokens).view(n, length, 3, self.n_heads, dim // self.n_heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.proj(mixed.transpose(1, 2).reshape(n, length, dim))
        return out


class Mlp(nn.Module):
    """Two linear layers with a GELU between them, applied to each token."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.fc2(self.act(self.fc1(tokens)))
        return out


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, dim: int, n_heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, n_heads)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, 4 * dim)

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = tokens + self.attn(self.norm1(tokens))
        out: Tensor = tokens + self.mlp(self.norm2(tokens))
        return out


class VisionTransformer(FromPixels):
    """A classifier on patch tokens and one class token (Dosovitskiy et al., 2021); input in [0, 1].

    Args:
        image_size: height and width of the images.
        enlarge: take smaller (or larger) images too, and bring them to `image_size` by bicubic interpolation.
        patch: height and width of a patch; divides `image_size`.
        dim: size of a token; a multiple of `n_heads`.
        depth: number of blocks.
        n_heads: attention heads in a block.
        n_classes: size of the output.
        mean: per-channel mean taken from the images.
        std: per-channel standard deviation they are divided by.
    """

    def __init__(
        self,
        *,
        image_size: int,
        patch: int,
        dim: int,
        depth: int,
        n_heads: int,
        n_classes: int,
        mean: Sequence[float],
        std: Sequence[float],
        enlarge: bool = False,
    ) -> None:
        super().__init__(mean, std)
        self.image_size, self.enlarge = image_size, enlarge
        require_positive(image_size=image_size, patch=patch, dim=dim, depth=depth, n_classes=n_classes)
        if image_size % patch:
            raise OptionError(f"`patch` must divide `image_size` = {image_size}, got {patch}.")
        self.patch_embed = PatchEmbed(patch, dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + (image_size // patch) ** 2, dim))
        # A module of its own, so that the tokens with their positions can be hooked and perturbed.
        self.norm_pre = nn.Identity()
        self.blocks = nn.Sequential(*(Block(dim, n_heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, n_classes)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.cls_token, std=1e-6)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patch_embed(normalised(self._sized(images), self.mean, self.std))
        tokens = torch.cat([self.cls_token.expand(len(tokens), -1, -1), tokens], dim=1)
        tokens = self.norm(self.blocks(self.norm_pre(tokens + self.pos_embed)))
        logits: Tensor = self.head(tokens[:, 0])
        return logits

    def _sized(self, images: Tensor) -> Tensor:
        side = (self.image_size, self.image_size)
        if images.shape[-2:] == side:
            return images
        if not self.enlarge:
            raise InputError(
                f"The model takes images of {self.image_size} x {self.image_size} pixels, got "
                f"{' x '.join(str(side) for side in images.shape[-2:])}; resize them with `model.preprocess`."
            )
        # Cubic curves overshoot at edges; the network was trained on images that stay in [0, 1].
        return F.interpolate(images, side, mode="bicubic", align_corners=False).clamp(0.0, 1.0)


def vit_small(
    *,
    width: int = 64,
    n_classes: int = 10,
    mean: Sequence[float] = (0.4914, 0.4822, 0.4465),
    std: Sequence[float] = (0.2470, 0.2435, 0.2616),
) -> VisionTransformer:
    """Return an untrained ViT-S for 32-pixel images: patch 4, depth 12, 6 heads of `width` channels each."""
    require_positive(width=width)
    return VisionTransformer(
        image_size=32, patch=4, dim=6 * width, depth=12, n_heads=6, n_classes=n_classes, mean=mean, std=std
    )


def vit_of(
    state: Mapping[str, Tensor], *, mean: Sequence[float], std: Sequence[float]
) -> VisionTransformer | None:
    """Return an untrained network that a plain ViT's tensors fit into, else None.

    The image's size follows from the number of positions, the heads have 64 channels each as in every published
    ViT of this kind.

    Args:
        state: tensors under timm's names.
        mean: per-channel mean taken from the images.
        std: per-channel standard deviation they are divided by.
    """
    names = ("patch_embed.proj.weight", "pos_embed", "cls_token", "head.weight", "blocks.0.attn.qkv.bias")
    if not all(name in state for name in names):
        return None
    dim, _, patch, _ = state["patch_embed.proj.weight"].shape
    grid = math.isqrt(state["pos_embed"].shape[1] - 1)
    return VisionTransformer(
        image_size=grid * patch,
        patch=patch,
        dim=dim,
        depth=1 + max(int(name.split(".")[1]) for name in state if name.startswith("blocks.")),
        n_heads=dim // 64,
        n_classes=state["head.weight"].shape[0],
        mean=mean,
        std=std,
    )
