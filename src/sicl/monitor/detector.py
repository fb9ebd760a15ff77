"""Alarms by betting: evidence that a claim about the stream ceased to hold, with a stated false-alarm rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

STAKES = np.array([0.05, 0.1, 0.2, 0.4, 0.7, 0.95])
"""Shares of the largest stake that cannot lose more than everything; all are played at once."""


class Detector:
    """A gambler who bets, sample by sample, that scores fall below what is claimed of them.

    A claim says: whatever has been seen, the next score (in [0, 1], higher is better) has a mean of at least
    `limit`. A stake b then multiplies the gambler's money by 1 + b (limit - score), which the claim makes an
    unfavourable game. One who enters with one coin before every sample holds, in sum, M <- (M + 1) (1 + b (limit
    - score)), and on a stream that keeps the claim M minus the coins paid in is a supermartingale: it takes at
    least 1 / rate samples in the mean until M reaches 1 / rate (the Shiryaev-Roberts e-detector of Shin, Ramdas
    and Rinaldo, 2023). The mean over stakes and claims is such a sum again, so one threshold serves all. Nothing
    is assumed about the scores' distribution, their order or their independence.

    Args:
        rate: false alarms a sample, at most, on streams that keep every claim.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.money: dict[str, NDArray[np.float64]] = {}

    @property
    def evidence(self) -> float:
        """Return the gamblers' mean money: about 1 while all is well, an alarm at 1 / rate."""
        return float(np.mean([np.mean(money) for money in self.money.values()])) if self.money else 0.0

    @property
    def suspects(self) -> list[str]:
        """Return the claims with money on them, the most doubtful first."""
        return sorted(self.money, key=lambda name: -float(np.mean(self.money[name])))

    def add(self, scores: Mapping[str, NDArray[np.float64]], limits: Mapping[str, float]) -> int | None:
        """Bet on the next samples; return the first one at which the alarm goes, or None.

        Args:
            scores: by claim, one a sample; claims may differ from call to call.
            limits: by claim; between 0 and 1.
        """
        names = [name for name in scores if name in limits]
        for name in names:
            self.money.setdefault(name, np.zeros(len(STAKES)))
        if not names:
            return None
        limit = np.array([[limits[name]] for name in names])
        stakes = STAKES / (1 - limit)
        money = np.stack([self.money[name] for name in names])
        idle = sum(float(m.sum()) for name, m in self.money.items() if name not in names)
        goal, alarm = len(self.money) * len(STAKES) / self.rate - idle, None
        scored = np.stack([scores[name] for name in names], axis=1)[:, :, None]
        for i, gain in enumerate(1 + stakes * (limit - scored)):
            money = (money + 1) * gain
            if money.sum() >= goal:
                alarm = i
                break
        self.money.update(zip(names, money))
        return alarm

    def reset(self) -> None:
        """Begin again, with empty hands."""
        self.money = {}

    def state_dict(self) -> dict[str, Any]:
        """Return the money by claim."""
        return {name: money.tolist() for name, money in self.money.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self.money = {name: np.array(money) for name, money in state.items()}
