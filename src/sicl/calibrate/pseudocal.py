"""PseudoCal: calibrate on a labelled set made from the unlabelled stream by mixup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sicl.adapt import Adapter, Moment
from sicl.calibrate._base import Calibration, Calibrator
from sicl.calibrate._memory import Recent
from sicl.calibrate._mixup import MIX, Pairs, mixed_logits
from sicl.calibrate._temperature import FEWEST, Warned, fit_temperature, require_temperature
from sicl.engine.variants import predicted_probability
from sicl.errors import OptionError, require_positive
from sicl.types import SourceData


@dataclass(frozen=True, kw_only=True)
class PseudoCal(Calibrator):
    """Fit a temperature on mixed images labelled by their larger part (Hu et al., ICML 2024).

    Two images of the stream with different predicted classes are mixed; the model's likelihood of the larger
    one's class on the mixture behaves like its likelihood of the truth on the stream. No source data.

    Args:
        mix: share of the image that gives the label (the paper's lambda).
        window: how many recent mixed samples to fit on, the current batch's always among them; a window no
            larger than the batch is the batch alone. Older ones keep the logits of the model of their time.
        seed: of the pairing.

    Raises:
        OptionError: a value is out of range.

    Differs from the reference implementation:
        - online: mixes within each batch, once, and refits on a window instead of the whole target set;
        - pairs come from one random cycle, so no image meets itself (the reference drops such pairs);
        - T by bisection on log T in [0.1, 100] instead of an unbounded simplex search from 2.0.
    """

    mix: float = MIX
    window: int = 1024
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive(window=self.window)
        if not 0.5 < self.mix < 1:
            raise OptionError(f"`mix` must lie in (0.5, 1), got {self.mix!r}.")

    def calibration(self, adapter: Adapter, *, source: SourceData | None = None) -> Calibration:
        """Return the live calibration; source data is not used."""
        return _PseudoCalibration(self)


class _PseudoCalibration(Calibration):
    def __init__(self, spec: PseudoCal) -> None:
        self.spec = spec
        self.pairs = Pairs(spec.seed)
        self.logits, self.labels = Recent(spec.window), Recent(spec.window)
        self.warned = Warned("PseudoCal")
        self.reset()

    def reset(self) -> None:
        """Forget the mixed samples and start the pairing anew."""
        self.pairs.reset()
        self.logits.clear()
        self.labels.clear()
        self.started = False
        self.temperature = 1.0

    def confidence(self, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """Mix, refit, and return the predicted class's probability at the temperature."""
        labels = moment.logits.argmax(dim=1)
        self._mix(moment, labels)
        # The first few samples of a stream of small batches say nothing yet.
        if self.started and len(self.labels.values()) >= FEWEST:
            fit = fit_temperature(self.logits.values(), self.labels.values())
            self.warned.about(fit)
            self.temperature = fit.temperature
        confidence = predicted_probability(moment.logits / self.temperature, labels)
        return confidence, {"temperature": confidence.new_full((), self.temperature)}

    def _mix(self, moment: Moment, labels: Tensor) -> None:
        others, other_labels = self.pairs.of(moment.images, labels)
        different = (labels != other_labels).nonzero().squeeze(1)  # the one wait for the device here
        if not len(different):
            return
        # All pairs go through, as a batch like the stream's; those of one class are dropped afterwards.
        logits = mixed_logits(moment, others, self.spec.mix)
        self.logits.add(logits[different])
        self.labels.add(labels[different])
        self.started = True

    def state_dict(self) -> dict[str, Any]:
        """Return the pairing's state and the mixed samples."""
        return {
            "pairs": self.pairs.state_dict(),
            "logits": self.logits.state_dict(),
            "labels": self.labels.state_dict(),
            "started": self.started,
            "temperature": self.temperature,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pairs.load_state_dict(state["pairs"])
        self.logits.load_state_dict(state["logits"])
        self.labels.load_state_dict(state["labels"])
        self.started, self.temperature = state["started"], require_temperature(state["temperature"])
