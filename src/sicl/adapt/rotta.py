"""RoTTA: robust test-time adaptation in dynamic scenarios."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from sicl.adapt._augment import strong_augmentation
from sicl.adapt._base import Adapter, Method
from sicl.adapt._memory import BalancedMemory, due_parts
from sicl.adapt._objective import entropy
from sicl.adapt._optim import Learner, make_optimizer
from sicl.adapt._parameters import train_norm_affines, training
from sicl.adapt._robustbn import RobustBatchNorm, swap_batch_norms
from sicl.engine.split import logits_of
from sicl.errors import require_between, require_not_negative, require_positive
from sicl.types import SourceData


@dataclass(frozen=True, kw_only=True)
class Rotta(Method):
    """Teach a student from a balanced memory, slowly, and predict with its average (Yuan et al., 2023).

    Every `update_every` samples the student learns, on strongly augmented samples of the memory, what the
    teacher says about them; the teacher follows by a moving average. Batch norms become robust ones.

    Args:
        lr: learning rate of Adam (first beta 0.9) on the norm layers' scale and shift.
        alpha: share of the memory's statistics that enters the robust batch norms at an update.
        nu: share of the student that enters the teacher at an update.
        capacity: samples in the memory.
        update_every: samples between two updates.
        lambda_t: weight of age in the memory's score.
        lambda_u: weight of uncertainty in it.

    Raises:
        OptionError: a value is out of range.
        UnsupportedModelError: no norm layer with affine parameters, or no running statistics (on `attach`).

    Differs from the reference implementation:
        - dropout stays off while the memory is learned;
        - the augmentation extends the edge pixels without end (the reference pads by half an image);
        - entropies come from log-probabilities, not from log(p + 1e-6).
    """

    lr: float = 1e-3
    alpha: float = 0.05
    nu: float = 0.001
    capacity: int = 64
    update_every: int = 64
    lambda_t: float = 1.0
    lambda_u: float = 1.0

    def __post_init__(self) -> None:
        require_positive(lr=self.lr, capacity=self.capacity, update_every=self.update_every)
        require_between(0.0, 1.0, alpha=self.alpha, nu=self.nu)
        require_not_negative(lambda_t=self.lambda_t, lambda_u=self.lambda_u)

    def adapter(self, network: nn.Module, *, source: SourceData | None = None) -> Adapter:
        return RottaAdapter(self, swap_batch_norms(network, self.alpha))


class RottaAdapter(Learner):
    """A teacher (`network`, which predicts) and the student it learns from."""

    spec: Rotta
    remembers: ClassVar[tuple[str, ...]] = ("student", "memory")

    def __init__(self, spec: Rotta, network: nn.Module) -> None:
        train_norm_affines(network, method="Rotta")
        # What never moves is shared by both networks.
        shared = {id(p): p for p in network.parameters() if not p.requires_grad}
        self.student = copy.deepcopy(network, shared)
        learned = [parameter for parameter in self.student.parameters() if parameter.requires_grad]
        self.followers = [parameter for parameter in network.parameters() if parameter.requires_grad]
        super().__init__(spec, network.requires_grad_(False), make_optimizer("adam", learned, lr=spec.lr))
        self.memory = BalancedMemory(spec.capacity, lambda_t=spec.lambda_t, lambda_u=spec.lambda_u)

    def update(self, images: Tensor, logits: Tensor | None) -> None:
        """Offer the batch to the memory, and learn each time enough samples have come."""
        if logits is None:
            with torch.no_grad():
                logits = self.forward(images)
        n_classes = logits.shape[1]
        uncertainty = entropy(logits) / math.log(max(n_classes, 2))
        labels = logits.argmax(dim=1)
        for part, due in due_parts(self.counters["samples"], len(images), self.spec.update_every):
            kept = self.memory.offer(images[part], labels[part], uncertainty[part], n_classes=n_classes)
            self.count("kept", kept)
            if due:
                self._learn()

    def _learn(self) -> None:
        images = self.memory.images
        ages = torch.tensor(self.memory.ages, dtype=torch.float32).to(images.device, non_blocking=True)
        with training(_robust_norms(self.network) + _robust_norms(self.student)):
            with torch.no_grad():
                targets = self.forward(images).float().softmax(dim=1)
            logits = logits_of(self.student(strong_augmentation(images, self.generator))).float()
            # exp(-a) / (1 + exp(-a)) of the age a in units of the capacity.
            weights = torch.sigmoid(-ages / self.spec.capacity)
            self.descend(-((targets * logits.log_softmax(dim=1)).sum(dim=1) * weights).mean())
        with torch.no_grad():
            torch._foreach_lerp_(tuple(self.followers), tuple(self.parameters), self.spec.nu)


def _robust_norms(network: nn.Module) -> list[nn.Module]:
    return [module for module in network.modules() if isinstance(module, RobustBatchNorm)]
