"""When do running statistics no longer fit a stream? Votes by the network's and by the batch's, side by side.

Recorded for each sample: the mean vote by the network's running statistics and by the batch's own, and for its
batch the share of predictions that survive the mirror under the batch's statistics: of the network's own
predictions (`fit`), and of those that the batch's statistics give (`self`); and how many predictions of the two
are the same without a mirror (`agree`). A rule gives the share of the votes that the batch's statistics have.

    python benchmarks/fit.py score fit --json results/fit-validation.json
    python benchmarks/fit.py show results/fit-validation.json
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from recording import Candidate, Job, Signals, study
from torch import Tensor

Share = Callable[[Signals], Tensor]
"""The share of the batch's statistics, from what was recorded."""

GONE = "fit.py: the rule that this study chose is no longer part of SICL; `score` and `show` read what was recorded."
LOST, STEPS = 0.4, 4
"""The rule as it was built."""
LIMITS = (0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75)
RATIOS = (0.75, 0.8, 0.85, 0.9, 0.95)
AGREEMENTS = (0.7, 0.75, 0.8, 0.85, 0.9)
RAMPS = ((0.6, 0.9), (0.6, 1.0), (0.7, 0.9), (0.7, 1.0), (0.8, 1.0))


def record(job: Job) -> None:
    """Say that there is nothing to record any more."""
    raise SystemExit(GONE)


def shares() -> dict[str, Share]:
    """Return the rules, by what they say."""
    found: dict[str, Share] = {}
    for share in (0.0, 0.5, 1.0):
        found[f"{share:g} always"] = lambda s, share=share: torch.full_like(s["fit"], share)
    for limit in LIMITS:
        found[f"1 if fit < {limit}"] = lambda s, limit=limit: s["fit"] < limit
    for ratio in RATIOS:
        found[f"1 if fit < {ratio} self"] = lambda s, ratio=ratio: s["fit"] < ratio * s["self"]
    for limit in AGREEMENTS:
        found[f"1 if agree < {limit}"] = lambda s, limit=limit: s["agree"] < limit
    for low, high in RAMPS:
        found[f"fit / self from {high} to {low}"] = lambda s, low=low, high=high: (
            (high - s["fit"] / s["self"]) / (high - low)
        ).clamp(0, 1)
        found[f"agree from {high} to {low}"] = lambda s, low=low, high=high: (
            (high - s["agree"]) / (high - low)
        ).clamp(0, 1)
    found[f"as built: fit / self from 1.0 to {1 - LOST}, in {STEPS} steps"] = lambda s: (
        torch.round(STEPS * ((1 - s["fit"] / s["self"]) / LOST).clamp(0, 1)) / STEPS
    )
    return found


def candidates() -> dict[str, Candidate]:
    """Return the confidences by every rule."""

    def mean(share: Share) -> Candidate:
        return lambda s: torch.lerp(s["own"], s["renewed"], share(s).float())

    return {name: mean(share) for name, share in shares().items()}


if __name__ == "__main__":
    study(__doc__, record, candidates(), methods="rotta,sotta,source", n=4096, out="fit")
