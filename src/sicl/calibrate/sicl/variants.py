"""Draw variants: what to do to the style or the content of a batch, from a seeded generator."""

from __future__ import annotations

import torch
from torch import Tensor

from sicl import perturb
from sicl.calibrate._memory import Recent
from sicl.calibrate.sicl.options import Options
from sicl.engine.variants import ContentVariants, StyleVariants, Variants

SMALL_BATCH = 16
"""Fewer samples say little about the spread over samples: remembered ones help."""


class Draws:
    """Draws variants of batches; `styles` are the style statistics of recent samples.

    Args:
        options: what to draw.
        generator: from where.
    """

    def __init__(self, options: Options, generator: torch.Generator) -> None:
        self.options, self.generator = options, generator
        self.styles = Recent(64)

    def style(self, known: Tensor, n: int, strength: Tensor | float = 1.0) -> Variants:
        """Return style variants of a batch.

        Args:
            known: the batch's channel means and deviations, N x 2 x C.
            n: how many.
            strength: multiplies the change.
        """
        own = known.transpose(0, 1)
        pool = own
        if len(known) < SMALL_BATCH:
            pool = self.styles.followed_by(known).transpose(0, 1)
        gaussian = self.options.style == "gaussian"
        change = strength * (self._gaussian(n, own, pool) if gaussian else self._mixed(n, own, pool))
        if self.options.components == "mean":
            change[1] = 0
        elif self.options.components == "std":
            change[0] = 0
        return StyleVariants(*perturb.style_map(own[0], own[1], change[0], change[1]))

    def content(self, features: Tensor, std: Tensor, n: int, strength: Tensor | float = 1.0) -> Variants:
        """Return content variants of features with these channel deviations (N x C)."""
        scaled = strength * self.options.content_scale * std
        return ContentVariants(scaled, self._noise(n, (perturb.block_length(features),)))

    def _gaussian(self, n: int, own: Tensor, pool: Tensor) -> Tensor:
        """Noise on mean and deviation (2 x n x N x C), in units of the spread of means over samples."""
        delta = self.options.style_scale * perturb.spread(pool[0], per=self.options.delta)
        return delta * self._noise(n, (2, *own.shape[1:])).transpose(0, 1)

    def _mixed(self, n: int, own: Tensor, pool: Tensor) -> Tensor:
        """The way toward another sample's style: all of it ("swap"), or a random part ("mixstyle")."""
        size = (n, own.shape[1])
        chance = torch.rand(size, generator=self.generator, device=own.device)
        partner = (chance * pool.shape[1]).long().clamp_max(pool.shape[1] - 1)
        change = pool[:, partner] - own.unsqueeze(1)
        if self.options.style == "swap":
            return change
        return change * (1 - beta(self.options.mixstyle_alpha, size, self.generator)).unsqueeze(-1)

    def _noise(self, n: int, size: tuple[int, ...]) -> Tensor:
        """Normal values for n variants: in pairs of opposite signs, unless the spec wants them independent."""
        drawn = n if self.options.noise == "independent" else (n + 1) // 2
        noise = torch.randn((drawn, *size), generator=self.generator, device=self.generator.device)
        return noise if drawn == n else torch.cat([noise, -noise])[:n]


def beta(alpha: float, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Draw from Beta(alpha, alpha) with a generator, as a ratio of Gamma variates (Johnk's method)."""
    device = generator.device
    out = torch.empty(size, device=device)
    missing = torch.ones(size, dtype=torch.bool, device=device)
    while bool(missing.any()):
        pair = torch.rand((2, *size), generator=generator, device=device).clamp_min(1e-12)
        # Accept x = u^(1/a), y = v^(1/a) when x + y <= 1; work with logs, since 1/a may be large.
        logs = pair.log() / alpha
        total = logs.logsumexp(dim=0)
        accepted = missing & (total <= 0)
        out = torch.where(accepted, (logs[0] - total).exp(), out)
        missing &= ~accepted
    return out
