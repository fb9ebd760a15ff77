"""CoTTA: continual test-time adaptation by an averaged teacher, averaged views and stochastic restoration."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from sicl.adapt._base import Adapter, Method
from sicl.adapt._optim import Learner, OptimizerName, make_optimizer
from sicl.adapt._parameters import in_float32, train_weights, use_batch_statistics
from sicl.adapt._views import mean_over_views
from sicl.engine.split import logits_of
from sicl.errors import require_between, require_not_negative, require_positive
from sicl.types import SourceData


@dataclass(frozen=True, kw_only=True)
class Cotta(Method):
    """Teach all weights by an averaged teacher that looks at many views (Wang et al., 2022).

    Where the network as attached is unsure of a batch, the teacher's prediction is the mean over augmented
    views. The student learns it, the teacher follows the student slowly, and a random share of the student's
    weights returns to the source. The teacher predicts, before both move.

    Args:
        lr: learning rate on every weight and bias; 1e-3 with Adam for CIFAR, 0.01 with SGD for ImageNet.
        optimizer: "adam" or "sgd" (Nesterov momentum 0.9).
        momentum: the teacher's share of itself at each step.
        restore: probability with which a scalar weight of the student returns to the source's.
        threshold: views are used where the source's mean confidence is below this; 0.92, 0.72, 0.1 for CIFAR-10,
            CIFAR-100, ImageNet (its authors: the 5 % quantile on source data, less 0.05).
        views: augmented views; 0 predicts with the images as they are.
        loss: "cross_entropy" to the teacher's probabilities (CIFAR), or "symmetric" (ImageNet).

    Raises:
        OptionError: a value is out of range.
        UnsupportedModelError: the model has no weights (on `attach`).

    Differs from the reference implementation:
        - views are computed only where they are used, many at once, each with batch statistics of its own;
        - dropout stays off; edge pixels of a view extend without end (the reference pads by half an image).
    """

    lr: float = 1e-3
    optimizer: OptimizerName = "adam"
    momentum: float = 0.999
    restore: float = 0.01
    threshold: float = 0.92
    views: int = 32
    loss: Literal["cross_entropy", "symmetric"] = "cross_entropy"

    def __post_init__(self) -> None:
        require_positive(lr=self.lr)
        require_between(0.0, 1.0, momentum=self.momentum, restore=self.restore, threshold=self.threshold)
        require_not_negative(views=self.views)

    def adapter(self, network: nn.Module, *, source: SourceData | None = None) -> Adapter:
        return CottaAdapter(self, network)


class CottaAdapter(Learner):
    """A teacher (`network`, which predicts), the student that it teaches and follows, and their source."""

    spec: Cotta
    remembers: ClassVar[tuple[str, ...]] = ("student", "anchor")

    def __init__(self, spec: Cotta, network: nn.Module) -> None:
        in_float32(network, method="Cotta")
        use_batch_statistics(network)
        self.anchor = copy.deepcopy(network)
        # The teacher's weights are marked as the student's: whoever looks at it sees what moves.
        train_weights(network, method="Cotta")
        self.student = copy.deepcopy(network)
        learned = train_weights(self.student, method="Cotta")
        optimizer = make_optimizer(spec.optimizer, learned.values(), lr=spec.lr, nesterov=True)
        super().__init__(spec, network, optimizer)
        self.followers = [network.get_parameter(name) for name in learned]
        self.sources = [self.anchor.get_parameter(name) for name in learned]

    def forward(self, images: Tensor) -> Tensor:
        """Return the teacher's logits: of the images, or the mean over views where the source is unsure."""
        with torch.no_grad():
            if self.spec.views:
                sure = logits_of(self.anchor(images)).float().softmax(dim=1).amax(dim=1).mean()
                if float(sure) < self.spec.threshold:
                    return mean_over_views(self.network, images, self.spec.views, self.generator)
            return super().forward(images)

    def update(self, images: Tensor, logits: Tensor | None) -> None:
        """Teach the student, let the teacher follow, restore some of the student."""
        targets = (self.forward(images) if logits is None else logits).float()
        said = logits_of(self.student(images)).float()
        loss = -(targets.softmax(dim=1) * said.log_softmax(dim=1)).sum(dim=1)
        if self.spec.loss == "symmetric":
            loss = 0.5 * (loss - (said.softmax(dim=1) * targets.log_softmax(dim=1)).sum(dim=1))
        self.descend(loss.mean())
        self.count("kept", len(images))
        with torch.no_grad():
            torch._foreach_lerp_(tuple(self.followers), tuple(self.parameters), 1 - self.spec.momentum)
            self._restore()

    def _restore(self) -> None:
        if self.spec.restore == 0:
            return
        # Drawn on the device, from a seed drawn on the host: one random state to save.
        seed = int(torch.randint(2**31, (), generator=self.generator))
        local = torch.Generator(self.parameters[0].device).manual_seed(seed)
        for parameter, source in zip(self.parameters, self.sources):
            chance = torch.rand(parameter.shape, generator=local, device=parameter.device)
            parameter.copy_(torch.where(chance < self.spec.restore, source, parameter))
