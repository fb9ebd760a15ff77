"""SoTTA: robust test-time adaptation on noisy data streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from sicl.adapt._base import Adapter, Method, Moment
from sicl.adapt._memory import ConfidentMemory, due_parts
from sicl.adapt._objective import entropy
from sicl.adapt._optim import Learner, Sam, make_optimizer
from sicl.adapt._parameters import train_norm_affines, training
from sicl.engine.norms import batch_norms
from sicl.errors import OptionError, require_between, require_positive
from sicl.types import Prediction, SourceData


class LiveConfidence(Protocol):
    """A live calibration."""

    def predict(self, moment: Moment) -> Prediction:
        """Return the prediction of a batch with its confidence."""


@runtime_checkable
class Confidence(Protocol):
    """A calibrator such as `sicl.SICL()`; all of the package's are."""

    def calibration(self, adapter: Any, *, source: SourceData | None = None) -> LiveConfidence:
        """Return the live calibration for an adapter."""


WINDOW = 1024
"""Samples over which the share of admitted ones is kept."""


@dataclass(frozen=True, kw_only=True)
class Sotta(Method):
    """Learn only from samples the model is sure of, towards a flat minimum (Gong et al., 2023).

    Samples with confidence above `threshold` enter a class-uniform memory; every `update_every` samples the
    network lowers the entropy of the memory with SAM and takes over its batch-norm statistics by `momentum`.

    Args:
        lr: learning rate of Adam on the norm layers' scale and shift outside the last stage.
        threshold: confidence needed to enter the memory; 0.99, 0.66, 0.33 for CIFAR-10, CIFAR-100, ImageNet.
        rho: SAM's radius; 0.05 in the official code, 0.5 in the SICL paper's appendix.
        momentum: of the batch norms' running statistics.
        capacity: samples in the memory.
        update_every: samples between two updates.
        epochs: steps on the memory at an update.
        confidence: a calibrator whose confidence the memory filters on; None is the softmax's.
        admit: what the filter asks of a calibrator's confidence. "share": as many of the last 1,024 samples enter
            as have a softmax above `threshold`, those with the highest calibrated confidence, because a threshold
            chosen for the softmax says nothing about a confidence on another scale; "threshold": it must be above
            `threshold` itself.

    Raises:
        OptionError: a value is out of range.
        UnsupportedModelError: the model has no norm layer with affine parameters (on `attach`).

    Differs from the reference implementation:
        - samples are filtered a batch at a time, with the state that predicted the batch;
        - no weight decay, as neither paper names one;
        - the memory is one batch, however large; with a single sample in it the update is left out;
        - the memory is not shuffled, and dropout stays off while it is learned;
        - entropies are summed over classes and come from log-probabilities, not from log(p + 1e-6).
    """

    lr: float = 1e-3
    threshold: float = 0.99
    rho: float = 0.05
    momentum: float = 0.2
    capacity: int = 64
    update_every: int = 64
    epochs: int = 1
    confidence: Confidence | None = None
    admit: Literal["share", "threshold"] = "share"

    def __post_init__(self) -> None:
        require_positive(lr=self.lr, rho=self.rho, capacity=self.capacity, epochs=self.epochs)
        require_positive(update_every=self.update_every)
        require_between(0.0, 1.0, threshold=self.threshold, momentum=self.momentum)
        if self.confidence is not None and not isinstance(self.confidence, Confidence):
            raise OptionError(
                "`confidence` must be a calibrator such as `sicl.SICL()`, got "
                f"{type(self.confidence).__name__}; leave it out for the softmax's."
            )

    def adapter(self, network: nn.Module, *, source: SourceData | None = None) -> Adapter:
        return SottaAdapter(self, network, source)


class SottaAdapter(Learner):
    """A network that lowers its entropy on a memory of confident samples."""

    spec: Sotta
    remembers: ClassVar[tuple[str, ...]] = ("memory",)

    def __init__(self, spec: Sotta, network: nn.Module, source: SourceData | None) -> None:
        parameters = train_norm_affines(network, method="Sotta", layers="not_last_stage")
        super().__init__(spec, network, make_optimizer("adam", parameters, lr=spec.lr))
        self.sam = Sam(self.optimizer, spec.rho)
        self.norms = [layer for layer in batch_norms(network) if layer.track_running_stats]
        for layer in self.norms:
            layer.momentum = spec.momentum
        self.memory = ConfidentMemory(spec.capacity, threshold=spec.threshold, generator=self.generator)
        self.live: LiveConfidence | None = None
        if spec.confidence is not None:
            self.live = spec.confidence.calibration(self, source=source)
        self.recent = torch.empty(2, 0)

    def update(self, images: Tensor, logits: Tensor | None) -> None:
        """Offer the batch to the memory, and learn each time enough samples have come."""
        with torch.no_grad():
            logits = self.forward(images) if logits is None else logits
            labels, confidence = self._confidence(images, logits)
        for part, due in due_parts(self.counters["samples"], len(images), self.spec.update_every):
            self.count("kept", self.memory.offer(images[part], labels[part], confidence[part]))
            if due and len(self.memory) > 1:
                self._learn(self.memory.images)

    def _confidence(self, images: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
        softmax, labels = logits.float().softmax(dim=1).max(dim=1)
        if self.live is None:
            return labels, softmax
        prediction = self.live.predict(Moment(self.network, images, logits.float()))
        if self.spec.admit == "threshold":
            return prediction.labels, prediction.confidence
        return prediction.labels, self._admitted(softmax, prediction.confidence)

    def _admitted(self, softmax: Tensor, confidence: Tensor) -> Tensor:
        """Return 1 for samples among the most trusted, as many as the softmax's threshold would let in, else 0."""
        # Vote shares tie often; among equals the softmax decides.
        trust = confidence.float() + 1e-6 * softmax
        new = torch.stack([softmax, trust])
        self.recent = torch.cat([self.recent.to(new), new], dim=1)[:, -max(WINDOW, len(trust)) :]
        n_sure = int((self.recent[0] > self.spec.threshold).sum())
        if n_sure == 0:
            return torch.zeros_like(trust)
        limit = self.recent[1].topk(n_sure).values[-1]
        return (trust >= limit).to(trust)

    def _learn(self, images: Tensor) -> None:
        with training(self.norms):
            for _ in range(self.spec.epochs):
                self.backward(entropy(self.forward(images)).mean())
                self.sam.ascend()
                # The second pass moves the running statistics again, as in the reference.
                entropy(self.forward(images)).mean().backward()  # type: ignore[no-untyped-call]
                self.sam.descend()
                self.count("updates", 1)

    def get_state(self) -> dict[str, Any]:
        live: Any = self.live
        # Not every calibration remembers something between batches.
        confidence = live.state_dict() if hasattr(live, "state_dict") else None
        return {**super().get_state(), "confidence": confidence, "recent": self.recent.clone()}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self.recent = self.here(state["recent"]).clone()
        live: Any = self.live
        if hasattr(live, "load_state_dict"):
            live.load_state_dict(state["confidence"])
