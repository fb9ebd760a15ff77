"""The monitor's options, validated."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from sicl.errors import OptionError, require_choice, require_positive
from sicl.selective import MISCALIBRATION, require_miscalibration, require_share
from sicl.spec import Spec

POLICIES = ("warn", "freeze", "reset", "rollback")


@dataclass(frozen=True, kw_only=True)
class MonitorOptions(Spec):
    """The fields of `Monitor`, where each is explained."""

    window: int = 256
    accuracy: float | None = None
    familiarity: float = 0.2
    collapse: float = 0.5
    false_alarms: float = 1e-5
    policy: Literal["warn", "freeze", "reset", "rollback"] = "warn"
    miscalibration: float = MISCALIBRATION
    level: float = 0.95
    log: Path | str | None = None
    every: int = 64
    remember: int = 10_000

    def __post_init__(self) -> None:
        require_choice(POLICIES, policy=self.policy)
        require_positive(every=self.every, remember=self.remember)
        if self.window < 16:
            raise OptionError(f"`window` must be at least 16 samples, got {self.window!r}.")
        require_miscalibration(self.miscalibration)
        shares = {"familiarity": self.familiarity, "collapse": self.collapse, "level": self.level}
        require_share(**shares, false_alarms=self.false_alarms)
        if self.accuracy is not None:
            require_share(accuracy=self.accuracy)

    def describe(self) -> dict[str, Any]:
        """Return the configuration as plain values."""
        return {**asdict(self), "log": None if self.log is None else str(self.log)}
