"""Draw variants: what to do to the style or the content of a batch, from a seeded generator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sicl import perturb
from sicl.calibrate._memory import Recent
from sicl.engine.variants import ContentVariants, StyleVariants, Variants

if TYPE_CHECKING:
    from sicl.calibrate.sicl.spec import SICL

Draw = Callable[[int], Variants]
"""Draws the next `n` variants of the whole batch."""

SMALL_BATCH = 16
"""Fewer samples say little about the spread over samples: remembered ones help."""


class Draws:
    """Makes what draws variants of a batch; `styles` are the style statistics of recent samples.

    Args:
        spec: what to draw.
        generator: from where.
    """

    def __init__(self, spec: SICL, generator: torch.Generator) -> None:
        self.spec, self.generator = spec, generator
        self.styles = Recent(64)

    def style(self, mean: Tensor, std: Tensor) -> Draw:
        """Return what draws style variants of a batch with these statistics (N x C)."""
        own = torch.stack([mean, std])
        pool = own
        if len(mean) < SMALL_BATCH:
            pool = self.styles.followed_by(own.transpose(0, 1)).transpose(0, 1)

        def draw(n: int) -> Variants:
            change = (
                self._gaussian(n, own, pool) if self.spec.style == "gaussian" else self._mixed(n, own, pool)
            )
            if self.spec.components == "mean":
                change[1] = 0
            elif self.spec.components == "std":
                change[0] = 0
            return StyleVariants(*perturb.style_map(mean, std, change[0], change[1]))

        return draw

    def content(self, features: Tensor, std: Tensor) -> Draw:
        """Return what draws content variants of features with these channel deviations (N x C)."""
        scaled, length = self.spec.content_scale * std, perturb.block_length(features)
        return lambda n: ContentVariants(scaled, self._noise(n, (length,)))

    def _gaussian(self, n: int, own: Tensor, pool: Tensor) -> Tensor:
        """Noise on mean and deviation (2 x n x N x C), in units of the spread of means over samples."""
        delta = self.spec.style_scale * perturb.spread(pool[0], per=self.spec.delta)
        return delta * self._noise(n, (2, *own.shape[1:])).transpose(0, 1)

    def _mixed(self, n: int, own: Tensor, pool: Tensor) -> Tensor:
        """The way toward another sample's style: all of it ("swap"), or a random part ("mixstyle")."""
        size = (n, own.shape[1])
        chance = torch.rand(size, generator=self.generator, device=own.device)
        partner = (chance * pool.shape[1]).long().clamp_max(pool.shape[1] - 1)
        change = pool[:, partner] - own.unsqueeze(1)
        if self.spec.style == "swap":
            return change
        return change * (1 - beta(self.spec.mixstyle_alpha, size, self.generator)).unsqueeze(-1)

    def _noise(self, n: int, size: tuple[int, ...]) -> Tensor:
        """Normal values for n variants: in pairs of opposite signs, unless the spec wants them independent."""
        drawn = n if self.spec.noise == "independent" else (n + 1) // 2
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
