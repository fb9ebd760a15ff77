"""EATA: efficient test-time adaptation without forgetting."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sicl.adapt._base import Adapter, Method
from sicl.adapt._objective import Objective, uncertainty_of
from sicl.adapt._optim import Learner, make_optimizer
from sicl.adapt._parameters import train_norm_affines, use_batch_statistics
from sicl.engine.split import logits_of
from sicl.errors import InputError, require_between, require_not_negative, require_positive
from sicl.types import SourceData


@dataclass(frozen=True, kw_only=True)
class Eata(Method):
    """Minimise the entropy of reliable, non-redundant samples, held near the source (Niu et al., 2022).

    A sample counts if its entropy H is below E0 = `margin` ln C and its probabilities are unlike the moving
    average of those used before; its weight is exp(E0 - H). Parameters that matter to the source domain
    (Fisher information F) are tied to their start: alpha * sum F (theta - theta0)^2.

    Args:
        lr: learning rate of SGD with momentum 0.9.
        margin: E0 as a share of ln C.
        similarity: the largest |cosine| to the moving average (the paper's epsilon, the code's d).
        fisher_alpha: strength of the tie (the paper's beta); 0 goes without source data.
        fisher_samples: source images that the Fisher information is measured on.
        fisher_batch: images in one gradient of that measurement.
        objective: "entropy", or "come": the entropy of COME's opinions, in filter, weight and loss.

    Raises:
        OptionError: a value is out of range.
        InputError: `fisher_alpha` > 0 and no source data (on `attach`).
        UnsupportedModelError: the model has no norm layer with affine parameters (on `attach`).

    Differs from the reference implementation:
        - dropout stays off; the source images of the Fisher information are drawn with `seed`.
    """

    lr: float = 0.005
    margin: float = 0.4
    similarity: float = 0.4
    fisher_alpha: float = 1.0
    fisher_samples: int = 2000
    fisher_batch: int = 64
    objective: Objective = "entropy"

    def __post_init__(self) -> None:
        require_positive(lr=self.lr, margin=self.margin)
        require_positive(fisher_samples=self.fisher_samples, fisher_batch=self.fisher_batch)
        require_between(0.0, 1.0, similarity=self.similarity)
        require_not_negative(fisher_alpha=self.fisher_alpha)

    def adapter(self, network: nn.Module, *, source: SourceData | None = None) -> Adapter:
        if self.fisher_alpha > 0 and source is None:
            raise InputError(
                "`Eata` needs source images for its Fisher information: pass "
                "`source=SourceData(images, labels)` to `attach`, or go without with `Eata(fisher_alpha=0)`."
            )
        return EataAdapter(self, network, source)


class EataAdapter(Learner):
    """A network that lowers its entropy on chosen samples."""

    spec: Eata
    reuses_forward: ClassVar[bool] = True
    remembers: ClassVar[tuple[str, ...]] = ("average", "anchor", "fisher")

    def __init__(self, spec: Eata, network: nn.Module, source: SourceData | None) -> None:
        use_batch_statistics(network)
        parameters = train_norm_affines(network, method="Eata")
        super().__init__(spec, network, make_optimizer("sgd", parameters, lr=spec.lr))
        self.average: Tensor | None = None
        self.anchor: list[Tensor] = []
        self.fisher: list[Tensor] = []
        if spec.fisher_alpha > 0 and source is not None:
            order = torch.randperm(len(source), generator=self.generator)[: spec.fisher_samples]
            images = source.images[order.to(source.images.device)]
            self.anchor = [parameter.detach().clone() for parameter in parameters]
            self.fisher = fisher_information(network, parameters, images, batch=spec.fisher_batch)

    def update(self, images: Tensor, logits: Tensor | None) -> None:
        """Take one step on the samples that pass both filters; none passes, nothing moves."""
        logits = self.forward(images) if logits is None else logits
        entropies = uncertainty_of(logits, self.spec.objective)
        probabilities = logits.detach().float().softmax(dim=1)
        limit = self.spec.margin * math.log(logits.shape[1])
        keep = entropies.detach() < limit
        if self.average is not None:
            cosine = F.cosine_similarity(self.average.unsqueeze(0), probabilities, dim=1)
            keep &= cosine.abs() < self.spec.similarity
        n_kept = int(keep.sum())
        if n_kept == 0:
            return
        weights = keep * torch.exp(limit - entropies.detach())
        self.backward((weights * entropies).sum() / n_kept)
        self._tie()
        self.optimizer.step()
        mean = (probabilities * keep.unsqueeze(1)).sum(dim=0) / n_kept
        self.average = mean if self.average is None else 0.9 * self.average + 0.1 * mean
        self.count("updates", 1)
        self.count("kept", n_kept)

    @torch.no_grad()
    def _tie(self) -> None:
        """Add the gradient of alpha * sum_i F_i (theta_i - theta0_i)^2, the paper's equation 8."""
        for parameter, weight, start in zip(self.parameters, self.fisher, self.anchor):
            if parameter.grad is not None:
                parameter.grad.addcmul_(weight, parameter - start, value=2 * self.spec.fisher_alpha)


def fisher_information(
    network: nn.Module, parameters: list[nn.Parameter], images: Tensor, *, batch: int
) -> list[Tensor]:
    """Return the mean over batches of the squared gradient of the cross-entropy to the own labels."""
    batches = torch.split(images, batch)
    total = [torch.zeros_like(parameter) for parameter in parameters]
    with torch.inference_mode(False), torch.enable_grad():
        for part in batches:
            part = part.to(total[0].device, total[0].dtype)
            logits = logits_of(network(part.clone() if part.is_inference() else part)).float()
            loss = F.cross_entropy(logits, logits.detach().argmax(dim=1))
            for sum_, gradient in zip(total, torch.autograd.grad(loss, parameters, allow_unused=True)):
                if gradient is not None:
                    sum_ += gradient.square()
    return [sum_ / len(batches) for sum_ in total]
