"""TENT: fully test-time adaptation by entropy minimisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from sicl.adapt._base import Adapter, Method
from sicl.adapt._objective import Objective, uncertainty_of
from sicl.adapt._optim import Learner, OptimizerName, make_optimizer
from sicl.adapt._parameters import train_norm_affines, use_batch_statistics
from sicl.errors import require_positive
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
        objective: "entropy", or "come": the entropy of COME's opinions (see `Come`).

    Raises:
        OptionError: a value is out of range.
        UnsupportedModelError: the model has no norm layer with affine parameters (on `attach`).

    Differs from the reference implementation:
        - dropout stays off (the reference puts the whole model in training mode);
        - layer and group norms are trained too (the reference looks for batch norms only).
    """

    lr: float = 1e-3
    optimizer: OptimizerName = "adam"
    steps: int = 1
    objective: Objective = "entropy"

    def __post_init__(self) -> None:
        require_positive(lr=self.lr, steps=self.steps)

    def adapter(self, network: nn.Module, *, source: SourceData | None = None) -> Adapter:
        return TentAdapter(self, network)


class TentAdapter(Learner):
    """A network that lowers its own entropy."""

    spec: Tent
    reuses_forward: ClassVar[bool] = True

    def __init__(self, spec: Tent, network: nn.Module) -> None:
        use_batch_statistics(network)
        parameters = train_norm_affines(network, method=type(spec).__name__)
        super().__init__(spec, network, make_optimizer(spec.optimizer, parameters, lr=spec.lr))

    def update(self, images: Tensor, logits: Tensor | None) -> None:
        """Take `steps` gradient steps on the batch's mean objective."""
        for _ in range(self.spec.steps):
            logits = self.forward(images) if logits is None else logits
            self.descend(uncertainty_of(logits, self.spec.objective).mean())
            logits = None
        self.count("kept", len(images))
