"""TENT: fully test-time adaptation by entropy minimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from sicl.adapt._base import Adapter, Method
from sicl.adapt._entropy import entropy
from sicl.adapt._parameters import train_norm_affines, use_batch_statistics
from sicl.errors import require_choice, require_positive
from sicl.types import SourceData


@dataclass(frozen=True, kw_only=True)
class Tent(Method):
    """Minimise the entropy of the model's own predictions (Wang et al., 2021).

    Batch norms use the batch's statistics; the scale and shift of all norm layers (batch norm, or layer norm
    for transformers: "TENT-LN") take one gradient step a batch.

    Args:
        lr: learning rate; 1e-3 with Adam for CIFAR, 2.5e-4 with SGD (momentum 0.9) for ImageNet.
        optimizer: "adam" (betas 0.9, 0.999) or "sgd" (momentum 0.9).
        steps: gradient steps a batch.

    Raises:
        OptionError: a value is out of range.
        UnsupportedModelError: the model has no norm layer with affine parameters (on `attach`).

    Differs from the reference implementation:
        - dropout stays off (the reference puts the whole model in training mode).
    """

    lr: float = 1e-3
    optimizer: Literal["adam", "sgd"] = "adam"
    steps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(lr=self.lr, steps=self.steps)
        require_choice(("adam", "sgd"), optimizer=self.optimizer)

    def _adapter(self, network: nn.Module, source: SourceData | None) -> Adapter:
        return TentAdapter(self, network)


class TentAdapter(Adapter):
    """A network that lowers its own entropy."""

    spec: Tent
    reuses_forward: ClassVar[bool] = True

    def __init__(self, spec: Tent, network: nn.Module) -> None:
        super().__init__(spec, network)
        use_batch_statistics(network)
        parameters = train_norm_affines(network, method="Tent")
        self.optimizer: torch.optim.Optimizer
        if spec.optimizer == "adam":
            self.optimizer = torch.optim.Adam(parameters, lr=spec.lr)
        else:
            self.optimizer = torch.optim.SGD(parameters, lr=spec.lr, momentum=0.9)

    def update(self, images: Tensor, logits: Tensor | None) -> None:
        """Take `steps` gradient steps on the batch's mean entropy."""
        for _ in range(self.spec.steps):
            logits = self.forward(images) if logits is None else logits
            loss = entropy(logits).mean()
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.counters["updates"] += 1
            logits = None

    def state_dict(self) -> dict[str, Any]:
        """Return all that the next step depends on, the optimizer's state included."""
        return {**super().state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        super().load_state_dict(state)
        self.optimizer.load_state_dict(state["optimizer"])
