"""SAR: sharpness-aware and reliable entropy minimisation."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from sicl.adapt._base import Adapter, Method
from sicl.adapt._objective import Objective, uncertainty_of
from sicl.adapt._optim import Learner, Sam, make_optimizer
from sicl.adapt._parameters import train_norm_affines, use_batch_statistics
from sicl.errors import require_not_negative, require_positive
from sicl.types import SourceData


@dataclass(frozen=True, kw_only=True)
class Sar(Method):
    """Minimise the entropy of reliable samples towards a flat minimum, and recover (Niu et al., 2023).

    Samples with entropy below `margin` ln C count; the step is sharpness-aware (SAM) and moves the norm
    layers' scale and shift outside the last stage (layer norms in transformers: "SAR-LN"). When the moving
    average of the loss falls below `recovery` the model has collapsed and returns to its start.

    Args:
        lr: learning rate of SGD with momentum 0.9; 2.5e-4 for ResNets, 1e-3 for ViTs.
        margin: the entropy limit E0 as a share of ln C.
        rho: SAM's radius; 0.05 in the official code, 0.5 in the SICL paper's appendix.
        recovery: reset when the moving average (0.9) of the second loss is below this; 0 never resets.
        average_restarts: whether the moving average starts anew after a reset, as the paper says; the official
            code keeps the old one, so it resets at every batch until that has risen.
        momentum_restarts: whether SGD's momentum starts anew after a reset; the official code's lives on, because
            what it resets is the wrapper for SAM and not the optimizer inside.
        objective: "entropy", or "come": the entropy of COME's opinions, in filters, loss and recovery.

    Raises:
        OptionError: a value is out of range.
        UnsupportedModelError: the model has no norm layer with affine parameters (on `attach`).

    Differs from the reference implementation:
        - after a recovery the moving average and the momentum start anew (`average_restarts=False` and
          `momentum_restarts=False` are the official code's way);
        - dropout stays off;
        - the last stage of other networks is found by `find_stages`, not by the names layer4 and blocks.9.
    """

    lr: float = 2.5e-4
    margin: float = 0.4
    rho: float = 0.05
    recovery: float = 0.2
    average_restarts: bool = True
    momentum_restarts: bool = True
    objective: Objective = "entropy"

    def __post_init__(self) -> None:
        require_positive(lr=self.lr, margin=self.margin, rho=self.rho)
        require_not_negative(recovery=self.recovery)

    def adapter(self, network: nn.Module, *, source: SourceData | None = None) -> Adapter:
        return SarAdapter(self, network)


class SarAdapter(Learner):
    """A network that lowers its entropy on reliable samples, and returns to its start when it collapses."""

    spec: Sar
    reuses_forward: ClassVar[bool] = True
    remembers: ClassVar[tuple[str, ...]] = ("average",)

    def __init__(self, spec: Sar, network: nn.Module) -> None:
        use_batch_statistics(network)
        parameters = train_norm_affines(network, method="Sar", layers="not_last_stage")
        super().__init__(spec, network, make_optimizer("sgd", parameters, lr=spec.lr))
        self.sam = Sam(self.optimizer, spec.rho)
        self.average: float | None = None

    def update(self, images: Tensor, logits: Tensor | None) -> None:
        """Ascend, filter again, descend; then recover if the loss says so."""
        logits = self.forward(images) if logits is None else logits
        limit = self.spec.margin * math.log(logits.shape[1])
        entropies = uncertainty_of(logits, self.spec.objective)
        reliable = entropies.detach() < limit
        self.backward(_masked_mean(entropies, reliable))
        self.sam.ascend()
        entropies = uncertainty_of(self.forward(images), self.spec.objective)
        still = reliable & (entropies.detach() < limit)
        loss = _masked_mean(entropies, still)
        loss.backward()  # type: ignore[no-untyped-call]
        # With nothing kept the gradients are zero and momentum moves on, as in the reference.
        self.sam.descend()
        self.count("updates", 1)
        self.count("kept", reliable.sum())
        self._recover(loss.detach(), still.any())

    def _recover(self, loss: Tensor, some: Tensor) -> None:
        value, any_kept = torch.stack([loss, some.to(loss.dtype)]).tolist()
        if any_kept:
            self.average = value if self.average is None else 0.9 * self.average + 0.1 * value
        if self.average is not None and self.average < self.spec.recovery and self._start is not None:
            self.network.load_state_dict(self._start["network"])
            if self.spec.momentum_restarts:
                self.optimizer.load_state_dict(copy.deepcopy(self._start["optimizer"]))
            if self.spec.average_restarts:
                self.average = None
            self.count("resets", 1)


def _masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """The mean over the mask, zero if it is empty; without asking the device how many there are."""
    return (values * mask).sum() / mask.sum().clamp(min=1)
