"""The optimiser, its learning rate at each step, and the average of the weights."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from sicl.train.spec import TrainSpec


def make_optimizer(model: nn.Module, spec: TrainSpec) -> torch.optim.Optimizer:
    """Return the spec's optimiser over all parameters of the model."""
    fused = next(model.parameters()).is_cuda
    if spec.optimizer == "sgd":
        return torch.optim.SGD(
            model.parameters(),
            lr=spec.lr,
            momentum=spec.momentum,
            nesterov=spec.momentum > 0,
            weight_decay=spec.weight_decay,
            fused=fused or None,
        )
    matrices = [p for name, p in model.named_parameters() if p.ndim > 1 and not _is_token(name)]
    others = [p for name, p in model.named_parameters() if p.ndim <= 1 or _is_token(name)]
    groups = [
        {"params": matrices, "weight_decay": spec.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=spec.lr, betas=(0.9, 0.999), fused=fused or None)


def _is_token(name: str) -> bool:
    return name.endswith(("cls_token", "pos_embed"))


def learning_rate(spec: TrainSpec, step: int, steps_per_epoch: int) -> float:
    """Return the rate of a step: linear warm-up, then half a cosine down to 0."""
    # A run shorter than twice the warm-up warms up for half of its steps.
    warmup = min(spec.warmup_epochs, spec.epochs / 2) * steps_per_epoch
    if step < warmup:
        return spec.lr * (step + 1) / (warmup + 1)
    total = spec.epochs * steps_per_epoch
    return spec.lr * 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(total - warmup, 1)))


class Average:
    """An exponential average of a model's weights and BN statistics, kept on its device."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._decay = decay
        self._n_updates = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Move towards `model`; the first steps average over what has been seen so far."""
        self._n_updates += 1
        weight = 1 - min(self._decay, self._n_updates / (self._n_updates + 9))
        own, theirs = _floats(self.model), _floats(model)
        torch._foreach_lerp_(own, theirs, weight)

    def state_dict(self) -> dict[str, object]:
        """Return weights and counter."""
        return {"model": self.model.state_dict(), "n_updates": self._n_updates}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restore what `state_dict` returned."""
        self.model.load_state_dict(state["model"])  # type: ignore[arg-type]
        self._n_updates = int(state["n_updates"])  # type: ignore[call-overload]


def _floats(model: nn.Module) -> list[Tensor]:
    return [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
