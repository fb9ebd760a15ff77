"""When do running statistics no longer fit a stream? Votes by the network's and by the batch's, side by side.

Recorded for each sample: the mean vote by the network's running statistics and by the batch's own, and for its
batch the share of predictions that survive the mirror under the batch's statistics: of the network's own
predictions (`fit`), and of those that the batch's statistics give (`self`); and how many predictions of the two
are the same without a mirror (`agree`). A rule gives the share of the votes that the batch's statistics have.

    python benchmarks/fit.py record --model cifar10=FILE --data DIR --device cuda --out fit
    python benchmarks/fit.py score fit --json results/fit-validation.json
    python benchmarks/fit.py show results/fit-validation.json
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from recording import Candidate, Job, Signals, study
from torch import Tensor

import sicl
from sicl.adapt import Moment
from sicl.calibrate.sicl.calibration import SiclCalibration
from sicl.calibrate.sicl.statistics import LOST, STEPS
from sicl.calibrate.sicl.votes import Ask

Share = Callable[[Signals], Tensor]
"""The share of the batch's statistics, from what was recorded."""

LIMITS = (0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75)
RATIOS = (0.75, 0.8, 0.85, 0.9, 0.95)
AGREEMENTS = (0.7, 0.75, 0.8, 0.85, 0.9)
RAMPS = ((0.6, 0.9), (0.6, 1.0), (0.7, 0.9), (0.7, 1.0), (0.8, 1.0))


class Both(SiclCalibration):
    """A calibration that votes by both kinds of statistics."""

    @torch.no_grad()
    def both(self, moment: Moment) -> dict[str, torch.Tensor]:
        """Return both mean votes, and how the statistics fit."""
        labels = moment.logits.argmax(dim=1)
        self.anchor.follow()
        temperature = self.temperature(moment, labels)
        state, out = self.generator.get_state(), {"label": labels}
        for name, questions in (("own", self.questions), ("renewed", self.renewed)):
            self.generator.set_state(state)
            asks = [Ask(questions[member], n) for member, n in self.counts().items()]
            # The mirror is asked by the batch's statistics in both cases.
            asks[-1] = Ask(self.renewed["mirror"], 1)
            votes = self.poll(asks, moment.images, labels, temperature, steady=False).by_name()
            out[name] = torch.stack([votes[m].mean(self.spec.votes) for m in self.spec.members]).mean(0)
        engine = self.renewed["mirror"].engine
        clean = engine.begin(moment.images)
        view = engine.logits(clean, engine.view(moment.images.flip(-1)))[0]
        mirrored, own = (logits.argmax(dim=1) for logits in (view, engine.logits(clean)))
        same = {"fit": mirrored == labels, "self": mirrored == own, "agree": own == labels}
        return out | {name: equal.float().mean().expand(len(labels)) for name, equal in same.items()}


def record(job: Job) -> None:
    """Adapt over one stream, and write both votes."""
    _, adapter = job.attach()
    job.record(adapter, Both(sicl.SICL(), adapter).both)


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
