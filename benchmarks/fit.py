"""When do running statistics no longer fit a stream? Votes by the network's and by the batch's, side by side.

Recorded for each sample: the mean vote by the network's running statistics and by the batch's own, and for its
batch the share of predictions that survive the mirror under the batch's statistics: of the network's own
predictions (`fit`), and of those that the batch's statistics give (`self`).

    python benchmarks/fit.py record --model cifar10=FILE --data DIR --device cuda --out fit
    python benchmarks/fit.py show fit
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from recording import add_options, missing

import sicl
import sicl.calibrate._invariance as invariance
from sicl.adapt import Moment
from sicl.calibrate._invariance import SiclCalibration
from sicl.metrics import expected_calibration_error

LIMITS = (0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75)
RATIOS = (0.75, 0.8, 0.85, 0.9, 0.95)


class Both(SiclCalibration):
    """A calibration that votes by both kinds of statistics."""

    @torch.no_grad()
    def both(self, moment: Moment) -> dict[str, torch.Tensor]:
        """Return both mean votes, and how the statistics fit."""
        labels = moment.logits.argmax(dim=1)
        self.attached.follow()
        self.temper.observe(moment.images, labels, self._predicts(moment))
        state, out = self.generator.get_state(), {"label": labels}
        for name, limit in (("own", -1.0), ("renewed", 2.0)):
            self.generator.set_state(state)
            invariance.FIT = limit
            seen = self.look(moment.images, moment.logits, self.temper.votes_at())
            signals = seen.finished()
            votes = [signals[f"{member}_invariance"] for member in self.spec.members]
            out[name] = torch.stack(votes).mean(dim=0)
        engine = seen.engines.mirror
        view, fresh = engine.view(moment.images.flip(-1)), engine.logits().argmax(dim=1)
        out["fit"] = signals["fit"].expand(len(labels))
        out["self"] = engine.collect(view, fresh).hard.mean().expand(len(labels))
        return out

    def _renewable(self, labels: torch.Tensor) -> bool:
        return True


def show(folder: Path) -> str:
    """Return a table: ECE by the rule that decides between the statistics, and the share of batches renewed."""
    streams = {path.stem: dict(np.load(path)) for path in sorted(folder.glob("*.npz"))}
    rules = {"network's statistics": lambda s: s["fit"] < 0, "the batch's": lambda s: s["fit"] < 2}
    for limit in LIMITS:
        rules[f"the batch's if fit < {limit}"] = lambda s, limit=limit: s["fit"] < limit
    for ratio in RATIOS:
        rules[f"the batch's if fit < {ratio} self"] = lambda s, ratio=ratio: s["fit"] < ratio * s["self"]
    lines = [["rule", *streams, "mean"], ["---"] * (len(streams) + 2)]
    for name, rule in rules.items():
        errors, cells = [], []
        for stream in streams.values():
            renewed = rule(stream)
            confidence = torch.from_numpy(np.where(renewed, stream["renewed"], stream["own"])).float()
            right = torch.from_numpy(stream["label"] == stream["target"])
            errors.append(100 * expected_calibration_error(confidence, right))
            cells.append(f"{errors[-1]:.2f} ({100 * renewed.mean():.0f} %)")
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
