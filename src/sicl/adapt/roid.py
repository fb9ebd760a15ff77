"""ROID: robust, universal test-time adaptation by weighting, consistency and a return to the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sicl.adapt._augment import strong_augmentation
from sicl.adapt._base import Adapter, Method
from sicl.adapt._objective import entropy
from sicl.adapt._optim import Learner, OptimizerName, make_optimizer
from sicl.adapt._parameters import train_norm_affines, use_batch_statistics
from sicl.errors import require_between, require_positive
from sicl.types import SourceData

Prior = Literal["add", "multiply", "none"]


@dataclass(frozen=True, kw_only=True)
class Roid(Method):
    """Minimise a soft likelihood ratio on certain and diverse samples, and return a little (Doebler et al., 2024).

    A sample's weight is exp(d c / T): d is how unlike the moving average of predictions it is, c how certain,
    both scaled to [0, 1] over the batch; d below its mean drops it. To the loss comes a symmetric cross-entropy
    to augmented views; after the step the parameters move by `back` towards the source's.

    Args:
        lr: learning rate; 1e-3 with Adam for CIFAR, 2.5e-4 with SGD (Nesterov momentum 0.9) for ImageNet.
        optimizer: "adam" or "sgd".
        temperature: T.
        momentum: of the moving average of predictions.
        back: share of the source's parameters that comes back after each step.
        augment: whether the consistency term sees augmented images; False: the images as they are.
        batch_size: the losses are sums divided by this; None: by the size of the batch at hand.
        prior: how the batch's smoothed class frequencies enter the prediction: "add" their logarithm to the
            logits, which gives probabilities; "multiply" the logits by them, the reference's way, after which
            a softmax is far too flat; or "none".

    Raises:
        OptionError: a value is out of range.
        UnsupportedModelError: the model has no norm layer with affine parameters (on `attach`).

    Differs from the reference implementation:
        - `prior="add"` and `batch_size=None` (the reference: "multiply", and 200 or 64 even for a short batch);
        - where all samples are alike their scaled d or c is 0 (the reference divides zero by zero);
        - a single kept image of which a batch norm sees one value a channel is not learnt (the reference fails);
        - single images are no sliding window; the augmentation mirrors at the edge without end.
    """

    lr: float = 2.5e-4
    optimizer: OptimizerName = "sgd"
    temperature: float = 1 / 3
    momentum: float = 0.9
    back: float = 0.01
    augment: bool = True
    batch_size: int | None = None
    prior: Prior = "add"

    def __post_init__(self) -> None:
        require_positive(lr=self.lr, temperature=self.temperature, batch_size=self.batch_size or 1)
        require_between(0.0, 1.0, momentum=self.momentum, back=self.back)

    def adapter(self, network: nn.Module, *, source: SourceData | None = None) -> Adapter:
        return RoidAdapter(self, network)


class RoidAdapter(Learner):
    """A network that sharpens itself on chosen samples, held near its source."""

    spec: Roid
    reuses_forward: ClassVar[bool] = True
    remembers: ClassVar[tuple[str, ...]] = ("average", "anchor")

    def __init__(self, spec: Roid, network: nn.Module) -> None:
        use_batch_statistics(network)
        parameters = train_norm_affines(network, method="Roid")
        optimizer = make_optimizer(spec.optimizer, parameters, lr=spec.lr, nesterov=True)
        super().__init__(spec, network, optimizer)
        self.anchor = [parameter.detach().clone() for parameter in parameters]
        self.average: Tensor | None = None

    def correct(self, logits: Tensor) -> Tensor:
        """Let the batch's smoothed class frequencies enter the prediction."""
        if self.spec.prior == "none":
            return logits
        n, n_classes = logits.shape
        prior = logits.float().softmax(dim=1).mean(dim=0)
        smooth = max(1 / n, 1 / n_classes) / prior.max()
        prior = (prior + smooth) / (1 + smooth * n_classes)
        return logits * prior if self.spec.prior == "multiply" else logits + prior.log()

    def update(self, images: Tensor, logits: Tensor | None) -> None:
        """Take one step on the weighted losses, then move back a little."""
        logits = (self.forward(images) if logits is None else logits).float()
        weights, kept = self._weigh(logits.detach())
        logits, weights = logits[kept], weights[kept]
        size = self.spec.batch_size or len(images)
        loss = (soft_likelihood_ratio(logits) * weights).sum() / size
        views = images[kept]
        if self.spec.augment:
            views = strong_augmentation(views, self.generator, blur=False, noise=False, padding="reflection")
        others = self.forward_part(views, images)
        if others is None:
            return
        # Gradients flow through both sides, as in the reference.
        others = others.float()
        pair = 0.5 * (_cross_entropy(others, logits) + _cross_entropy(logits, others))
        self.descend(loss + (pair * weights).sum() / size)
        self.count("kept", len(weights))
        with torch.no_grad():
            torch._foreach_lerp_(tuple(self.parameters), self.anchor, self.spec.back)

    def _weigh(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return each sample's weight, and which are kept; the moving average follows after its use."""
        probabilities = logits.softmax(dim=1)
        n_classes = logits.shape[1]
        average = logits.new_full((n_classes,), 1 / n_classes) if self.average is None else self.average
        unlike = _scaled(1 - F.cosine_similarity(average.unsqueeze(0), probabilities, dim=1))
        certain = _scaled(-entropy(logits))
        mean = probabilities.mean(dim=0)
        self.average = self.spec.momentum * average + (1 - self.spec.momentum) * mean
        kept = torch.where(unlike >= unlike.mean())[0]
        return torch.exp(unlike * certain / self.spec.temperature), kept


def soft_likelihood_ratio(logits: Tensor) -> Tensor:
    """Return -sum_k q ln(q / (1 - q) + 1e-5) of each row, with q the softmax clipped at 0.99."""
    q = logits.softmax(dim=1).clamp(max=0.99)
    return -(q * torch.log(q / (1 - q) + 1e-5)).sum(dim=1)


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return -(targets.softmax(dim=1) * logits.log_softmax(dim=1)).sum(dim=1)


def _scaled(values: Tensor) -> Tensor:
    low, high = torch.aminmax(values)
    return torch.where(high > low, (values - low) / (high - low).clamp_min(1e-30), 0.0)
