"""Sharpness-aware minimisation (Foret et al., 2021): descend with the gradient of the worst point nearby."""

from __future__ import annotations

import torch
from torch import Tensor


class Sam:
    """The two moves of SAM around any optimizer: gradient, `ascend`, gradient again, `descend`.

    Args:
        optimizer: makes the descent; its parameters are the ones that move.
        rho: the L2 radius of the ascent.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, rho: float) -> None:
        self.optimizer = optimizer
        self.rho = rho
        self._moved: list[Tensor] = []
        self._before: list[Tensor] = []

    @torch.no_grad()
    def ascend(self) -> None:
        """Move the parameters by rho * g / ||g||, and drop the gradients."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self._moved = [p for p in parameters if p.grad is not None]
        self._before = [p.clone() for p in self._moved]
        gradients = [p.grad for p in self._moved if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        scale = self.rho / (norm + 1e-12)
        torch._foreach_add_(self._moved, list(torch._foreach_mul(gradients, scale)))
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def descend(self) -> None:
        """Move back, and take the optimizer's step with the gradient found up there."""
        torch._foreach_copy_(self._moved, self._before)
        self._moved, self._before = [], []
        self.optimizer.step()
