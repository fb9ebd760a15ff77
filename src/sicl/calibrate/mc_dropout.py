"""MC Dropout: an ensemble of thinned networks, also for networks that have no dropout layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sicl.adapt import Adapter, Moment
from sicl.calibrate._base import Calibration, Calibrator
from sicl.calibrate._passes import device_of
from sicl.engine.cut import find_stages
from sicl.engine.engine import likes_bfloat16, rows_that_fit
from sicl.engine.norms import statistics_for
from sicl.engine.split import Split
from sicl.errors import OptionError, UnsupportedModelError, require_positive
from sicl.types import Prediction, SourceData


@dataclass(frozen=True, kw_only=True)
class McDropout(Calibrator):
    """Average the softmax of passes with random units dropped (Gal & Ghahramani, 2016).

    Element-wise dropout acts on the output of each stage (as AETTA places it), so the network needs no
    dropout layers. The confidence is the mean probability of the adapter's class; the ensemble's own
    prediction is in `signals["averaged_labels"]` and `signals["averaged_confidence"]`.

    Args:
        p: chance that a unit is dropped.
        passes: passes a batch (the N of the papers).
        stages: the most places with dropout: the ends of so many equal parts of the network's stages. A
            ResNet has four; of a transformer's twelve blocks it is every third.
        prediction: "adapter" keeps its labels; "averaged" reports the ensemble's class and confidence.
        norm: batch norms during the passes: "batch": each pass has its own statistics, where the adapter
            uses batch statistics; "frozen": those of the clean pass are kept.
        precision: of the passes; "auto": bfloat16 on a GPU that is faster in it, else the network's own.
        max_batch: the most rows sent through the network at once; None: 128 on a CPU (its
            cache), else 2,048 or what 2 GiB hold.
        seed: of the masks.

    Raises:
        OptionError: a value is out of range.
        UnsupportedModelError: the model has no stages (on `attach`).

    Differs from the reference implementation:
        - there is none for test-time adaptation; AETTA's dropout inference has the same places. The part
          before the first dropout is computed once, and passes share batches.
    """

    p: float = 0.3
    passes: int = 20
    stages: int = 4
    prediction: Literal["adapter", "averaged"] = "adapter"
    norm: Literal["batch", "frozen"] = "batch"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    max_batch: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive(
            passes=self.passes, stages=self.stages, max_batch=1 if self.max_batch is None else self.max_batch
        )
        if not 0 < self.p < 1:
            raise OptionError(f"`p` must lie in (0, 1), got {self.p!r}.")

    def calibration(self, adapter: Adapter, *, source: SourceData | None = None) -> Calibration:
        """Return the live calibration; source data is not used."""
        return _DropoutCalibration(self, adapter)


class _DropoutCalibration(Calibration):
    def __init__(self, spec: McDropout, adapter: Adapter) -> None:
        self.spec = spec
        names = dropout_places(adapter.network, spec.stages)
        self.split = Split(adapter.network, names[0], statistics=statistics_for(spec.norm))
        self.later = [adapter.network.get_submodule(name) for name in names[1:]]
        self.generator = torch.Generator(device_of(adapter.network))
        self.reset()

    def reset(self) -> None:
        """Start the masks anew."""
        self.generator.manual_seed(self.spec.seed)

    def predict(self, moment: Moment) -> Prediction:
        prediction = super().predict(moment)
        if self.spec.prediction == "adapter":
            return prediction
        return replace(
            prediction,
            labels=prediction.signals["averaged_labels"],
            confidence=prediction.signals["averaged_confidence"],
        )

    def confidence(self, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the mean probability of the adapter's class over the passes."""
        labels = moment.logits.argmax(dim=1, keepdim=True)
        images = moment.images
        if images.is_cuda and images.ndim == 4:
            images = images.contiguous(memory_format=torch.channels_last)
        begun = self.split.begin(images)
        low = self._low_precision(begun.features)
        features = begun.features.to(torch.bfloat16) if low else begun.features
        rows = len(features)
        most = 128 if labels.device.type == "cpu" else min(2048, rows_that_fit(self.split, features, 2.0))
        limit = self.spec.max_batch or most
        per_chunk = max(1, limit // rows)
        total = torch.zeros_like(moment.logits)
        for start in range(0, self.spec.passes, per_chunk):
            n = min(per_chunk, self.spec.passes - start)
            stacked = self._thin(torch.cat([features] * n))  # not `repeat`, which loses channels-last
            reduced = torch.autocast(features.device.type, torch.bfloat16, enabled=low)
            with reduced, _after(self.later, self._thin):
                logits = self.split.resume(stacked, begun, groups=n)
            total += logits.float().softmax(dim=1).view(n, rows, -1).sum(dim=0)
        mean = (total / self.spec.passes).clamp(0.0, 1.0)
        averaged = mean.max(dim=1)
        signals = {"averaged_labels": averaged.indices, "averaged_confidence": averaged.values}
        return mean.gather(1, labels).squeeze(1), signals

    def _low_precision(self, features: Tensor) -> bool:
        if self.spec.precision == "auto":
            return features.is_cuda and features.dtype == torch.float32 and likes_bfloat16(features.device)
        return self.spec.precision == "bfloat16"

    def _thin(self, features: Tensor) -> Tensor:
        """Drop each unit with chance p, and scale the others up."""
        keep = torch.empty_like(features).bernoulli_(1 - self.spec.p, generator=self.generator)
        return features * keep.div_(1 - self.spec.p)

    def state_dict(self) -> dict[str, Any]:
        """Return the masks' random state."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.generator.set_state(state["generator"])


def dropout_places(network: nn.Module, most: int) -> list[str]:
    """Return the names of the modules after which to drop: the ends of at most `most` equal parts."""
    stages = find_stages(network)
    if not stages:
        raise UnsupportedModelError(
            f"`McDropout` found no stages in {type(network).__name__} to put dropout after; give the model "
            "normalisation layers or name its stages layer1, layer2, ..."
        )
    parts = min(most, len(stages))
    return [stages[(i + 1) * len(stages) // parts - 1] for i in range(parts)]


@contextmanager
def _after(modules: list[nn.Module], change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Pass the output of each module (the first of several) through `change` while the block runs."""

    def hook(_module: nn.Module, _args: Any, output: Any) -> Any:
        if isinstance(output, tuple | list):
            return type(output)([change(output[0]), *output[1:]])
        return change(output)

    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(hook).remove)
        yield
