"""When do running statistics no longer fit a stream? Votes by the network's and by the batch's, side by side.

Recorded for each sample: the mean vote by the network's running statistics and by the batch's own, and for its
batch the share of predictions that survive the mirror under the batch's statistics: of the network's own
predictions (`fit`), and of those that the batch's statistics give (`self`).

    python benchmarks/fit.py record --model cifar10=FILE --data DIR --device cuda --out fit
    python benchmarks/fit.py show fit
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

import sicl
import sicl.calibrate._invariance as invariance
from sicl.adapt import METHODS, Moment
from sicl.calibrate._invariance import SiclCalibration
from sicl.corruptions import VALIDATION_CORRUPTIONS
from sicl.data import load_dataset, source_data
from sicl.metrics import expected_calibration_error
from sicl.streams import Benign, Dynamic

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


def record(options: argparse.Namespace, dataset: str, file: str, method: str, job: str, out: Path) -> None:
    """Adapt over one stream, and write both votes."""
    started = time.perf_counter()
    cls = METHODS[method]
    spec = cls.for_dataset(dataset) if hasattr(cls, "for_dataset") else cls()
    model = sicl.load_model(file, device=options.device)
    source = source_data(load_dataset(dataset, options.data, "val"), n=2000, device=options.device)
    adapter = replace(spec, predict="after").attach(model, source=source)
    calibration, rows, target = Both(sicl.SICL(), adapter), [], []
    if job == "dynamic":
        stream = Dynamic(corruptions=VALIDATION_CORRUPTIONS, severity=5, per_corruption=options.n // 4)
    else:
        stream = Benign(corruption=job, severity=5, n=options.n)
    for batch in stream.open(load_dataset(dataset, options.data), device=options.device):
        adapter.step(batch.images, lambda moment: rows.append(calibration.both(moment)))
        target.append(batch.labels.cpu())
    arrays = {name: torch.cat([row[name] for row in rows]).cpu().numpy() for name in rows[0]}
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out, target=torch.cat(target).numpy(), **arrays)
    print(f"{out.name}: {time.perf_counter() - started:.0f} s", flush=True)


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
    recording = commands.add_parser("record")
    recording.add_argument("--data")
    recording.add_argument("--model", action="append", required=True, metavar="DATASET=FILE")
    recording.add_argument("--methods", default="rotta,sotta")
    recording.add_argument("--streams", default=",".join((*VALIDATION_CORRUPTIONS, "dynamic")))
    recording.add_argument("--n", type=int, default=4096)
    recording.add_argument("--device", default="cpu")
    recording.add_argument("--out", type=Path, default=Path("fit"))
    showing = commands.add_parser("show")
    showing.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "show":
        print(show(options.folder))
        return
    models = [m.partition("=")[::2] for m in options.model]
    jobs = [
        (*m, method, s)
        for m in models
        for method in options.methods.split(",")
        for s in options.streams.split(",")
    ]
    for dataset, file, method, stream in jobs:
        out = options.out / f"{dataset}-{method}-{stream}.npz"
        if not out.exists():
            record(options, dataset, file, method, stream, out)


if __name__ == "__main__":
    main()
