"""Draw what torch cannot draw with a generator of one's own."""

from __future__ import annotations

import torch
from torch import Tensor


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
