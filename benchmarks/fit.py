"""When do running statistics no longer fit a stream? Votes by the network's and by the batch's, side by side.

Recorded for each sample: the mean vote by the network's running statistics and by the batch's own, and for its
batch the share of predictions that survive the mirror under the batch's statistics: of the network's own
predictions (`fit`), and of those that the batch's statistics give (`self`); and how many predictions of the two
are the same without a mirror (`agree`). A rule gives the share of the votes that the batch's statistics have.

    python benchmarks/fit.py record --model cifar10=FILE --data DIR --device cuda --out fit
    python benchmarks/fit.py show fit
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from recording import add_options, missing

import sicl
from sicl.adapt import Moment
from sicl.calibrate._invariance import SiclCalibration
from sicl.metrics import expected_calibration_error

Rule = Callable[[dict[str, np.ndarray]], np.ndarray]

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
        self.attached.follow()
        self.temper.observe(moment.images, labels, self._predicts(moment))
        state, out = self.generator.get_state(), {"label": labels}
        self.statistics.in_question = lambda _labels: True
        for name, share in (("own", 0.0), ("renewed", 1.0)):
            self.generator.set_state(state)
            self.statistics.share = lambda _fit, share=share: share
            seen = self.look(moment.images, moment.logits, self.temper.votes_at())
            signals = seen.finished()
            votes = [signals[f"{member}_invariance"] for member in self.spec.members]
            out[name] = torch.stack(votes).mean(dim=0)
        engine = seen.engines.mirror
        mirrored, fresh = (engine.logits(v).argmax(dim=1) for v in (moment.images.flip(-1), None))
        same = {"fit": mirrored == labels, "self": mirrored == fresh, "agree": fresh == labels}
        return out | {name: equal.float().mean().expand(len(labels)) for name, equal in same.items()}


def rules() -> dict[str, Rule]:
    """Return the rules, by what they say."""
    found: dict[str, Rule] = {}
    for share in (0.0, 0.5, 1.0):
        found[f"{share:g} always"] = lambda s, share=share: np.full_like(s["fit"], share)
    for limit in LIMITS:
        found[f"1 if fit < {limit}"] = lambda s, limit=limit: s["fit"] < limit
    for ratio in RATIOS:
        found[f"1 if fit < {ratio} self"] = lambda s, ratio=ratio: s["fit"] < ratio * s["self"]
    for limit in AGREEMENTS:
        found[f"1 if agree < {limit}"] = lambda s, limit=limit: s["agree"] < limit
    for low, high in RAMPS:
        found[f"fit / self from {high} to {low}"] = lambda s, low=low, high=high: np.clip(
            (high - s["fit"] / s["self"]) / (high - low), 0, 1
        )
        found[f"agree from {high} to {low}"] = lambda s, low=low, high=high: np.clip(
            (high - s["agree"]) / (high - low), 0, 1
        )
    return found


def show(folder: Path) -> str:
    """Return a table: ECE by the rule that decides between the statistics, and the mean share of the batch's."""
    streams = {path.stem: dict(np.load(path)) for path in sorted(folder.glob("*.npz"))}
    lines = [["share of the batch's", *streams, "mean"], ["---"] * (len(streams) + 2)]
    for name, rule in rules().items():
        errors, cells = [], []
        for stream in streams.values():
            share = rule(stream)
            confidence = torch.from_numpy(share * stream["renewed"] + (1 - share) * stream["own"]).float()
            right = torch.from_numpy(stream["label"] == stream["target"])
            errors.append(100 * expected_calibration_error(confidence, right))
            cells.append(f"{errors[-1]:.2f} ({100 * share.mean():.0f} %)")
        lines.append([name, *cells, f"{fmean(errors):.2f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add_options(commands.add_parser("record"), methods="rotta,sotta", n=4096, out="fit")
    showing = commands.add_parser("show")
    showing.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "show":
        print(show(options.folder))
        return
    for job in missing(options):
        _, adapter = job.attach()
        job.record(adapter, Both(sicl.SICL(), adapter).both)


if __name__ == "__main__":
    main()
