"""Would statistics pooled over recent batches tell when a batch's own mislead? They do on streams sorted by class.

A network that normalises with the batch's statistics sees only differences within a batch, so batches of one or two
classes are classified badly, and every vote by the same statistics agrees. Recorded for each sample: SICL's mean
vote; the probability of the predicted class when the batch is normalised together with the seven before it
(`pooled`); and for its batch, how many predictions are the same then (`agree`).

    python benchmarks/pooled.py record --model demo=FILE --n 1472 --out pooled
    python benchmarks/pooled.py score pooled --json results/pooled-validation.json
    python benchmarks/pooled.py show results/pooled-validation.json
"""

from __future__ import annotations

import torch
from recording import BY_CLASS, Candidate, Job, Signals, study

import sicl
from sicl.adapt import Adapter, Moment
from sicl.calibrate.sicl.calibration import SiclCalibration
from sicl.corruptions import VALIDATION_CORRUPTIONS
from sicl.engine.variants import predicted_probability

BATCHES = 8
LIMITS = (0.65, 0.75, 0.85)


class Pooling(SiclCalibration):
    """SICL's votes, and what the network says about a batch among recent ones."""

    def __init__(self, spec: sicl.SICL, adapter: Adapter) -> None:
        super().__init__(spec, adapter)
        self.recent: list[torch.Tensor] = []

    @torch.no_grad()
    def both(self, moment: Moment) -> Signals:
        """Return both confidences, and how far the predictions agree."""
        labels = moment.logits.argmax(dim=1)
        votes, _ = self.confidence(moment)
        logits = moment.network(torch.cat([moment.images, *self.recent]))[: len(labels)]
        self.recent = [*self.recent, moment.images][1 - BATCHES :]
        agree = (logits.argmax(dim=1) == labels).float().mean()
        pooled = predicted_probability(logits, labels)
        return {"label": labels, "votes": votes, "pooled": pooled, "agree": agree.expand(len(labels))}


def record(job: Job) -> None:
    """Adapt over one stream, and write both confidences."""
    _, adapter = job.attach()
    job.record(adapter, Pooling(sicl.SICL(), adapter).both)


def candidates() -> dict[str, Candidate]:
    """Return what could be made of them."""
    found: dict[str, Candidate] = {
        "votes (SICL)": lambda s: s["votes"],
        "pooled": lambda s: s["pooled"],
        "the lower of both": lambda s: torch.minimum(s["votes"], s["pooled"]),
        "their product": lambda s: s["votes"] * s["pooled"],
    }
    for limit in LIMITS:
        found[f"votes; their product if agree < {limit}"] = lambda s, limit=limit: torch.where(
            s["agree"] < limit, s["votes"] * s["pooled"], s["votes"]
        )
    return found


if __name__ == "__main__":
    streams = [*VALIDATION_CORRUPTIONS, *(name + BY_CLASS for name in VALIDATION_CORRUPTIONS), "dynamic"]
    study(__doc__, record, candidates(), methods="tent,sar", n=1472, out="pooled", streams=",".join(streams))
