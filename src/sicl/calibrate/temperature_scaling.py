"""Vanilla temperature scaling: one number, fitted on labelled source data."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sicl.adapt import Adapter, Moment
from sicl.calibrate._base import Calibration, Calibrator, require_source
from sicl.calibrate._passes import as_it_predicts, batches, draw_source, is_due
from sicl.calibrate._temperature import Warned, fit_temperature, require_temperature
from sicl.engine.norms import running_statistics
from sicl.engine.split import logits_of
from sicl.engine.variants import predicted_probability
from sicl.errors import OptionError, require_positive
from sicl.types import SourceData


@dataclass(frozen=True, kw_only=True)
class TemperatureScaling(Calibrator):
    """Divide the logits by one temperature fitted on labelled source data (Guo et al., 2017).

    The field's convention is the default: T is fitted once, when attached, on the source model (batch norms
    with their running statistics), and kept while the model adapts.

    Args:
        every: 0 keeps the source model's temperature for good; k > 0 fits it again on the same source data
            with the adapted model, as that predicts, every k batches.
        source_samples: the most source samples to fit on (drawn at random if there are more).
        batch_size: of the passes over source data.
        seed: of that draw.

    Raises:
        OptionError: a value is out of range.
        InputError: no `source` was given (on `attach`).

    Differs from the reference implementation:
        - T by bisection on log T in [0.1, 100] instead of L-BFGS, which is known not to converge in some
          settings; the objective is the same.
    """

    every: int = 0
    source_samples: int = 5000
    batch_size: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive(source_samples=self.source_samples, batch_size=self.batch_size)
        if self.every < 0:
            raise OptionError(f"`every` must be >= 0, got {self.every!r}; 0 never fits again.")

    def calibration(self, adapter: Adapter, *, source: SourceData | None = None) -> Calibration:
        """Fit on the network as it is now, and return the live calibration."""
        return _TemperatureCalibration(self, adapter, require_source(source, calibrator="TemperatureScaling"))


class _TemperatureCalibration(Calibration):
    def __init__(self, spec: TemperatureScaling, adapter: Adapter, source: SourceData) -> None:
        self.spec = spec
        self.source = draw_source(source, spec.source_samples, spec.seed)
        self.warned = Warned("TemperatureScaling")
        self._at_start = self._fit(adapter.network, running_statistics(adapter.network))
        self.reset()

    def reset(self) -> None:
        """Return to the temperature fitted when attached."""
        self.temperature, self.count = self._at_start, 0

    def confidence(self, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the predicted class's probability at the temperature."""
        if self.spec.every and is_due(self.count, self.spec.every):
            self.temperature = self._fit(moment.network, as_it_predicts(moment.network))
        self.count += 1
        labels = moment.logits.argmax(dim=1)
        confidence = predicted_probability(moment.logits / self.temperature, labels)
        return confidence, {"temperature": torch.tensor(self.temperature, device=confidence.device)}

    @torch.no_grad()
    def _fit(self, network: nn.Module, norms: AbstractContextManager[None]) -> float:
        with norms:
            parts = batches(self.source.images, self.spec.batch_size, network)
            logits = torch.cat([logits_of(network(images)) for images in parts])
        fit = fit_temperature(logits, self.source.labels.to(logits.device))
        self.warned.about(fit)
        return fit.temperature

    def state_dict(self) -> dict[str, Any]:
        """Return the temperature and the count of batches."""
        return {"temperature": self.temperature, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.temperature, self.count = require_temperature(state["temperature"]), state["count"]
