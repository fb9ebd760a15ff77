"""What studies share that record signals on adapting streams, and score confidences made of them."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import Tensor, nn

import sicl
from sicl.adapt import METHODS, Adapter, Moment
from sicl.corruptions import VALIDATION_CORRUPTIONS
from sicl.data import load_dataset, source_data
from sicl.metrics import auroc, expected_calibration_error
from sicl.streams import Benign, Dynamic

Signals = dict[str, Tensor]
"""N values each, by name."""
BY_CLASS = " by class"
Candidate = Callable[[Signals], Tensor]
"""Makes a confidence of what was recorded."""


def add_options(parser: argparse.ArgumentParser, *, methods: str, n: int, out: str, streams: str) -> None:
    """Add what a recording needs; the arguments are defaults."""
    parser.add_argument("--data")
    parser.add_argument("--model", action="append", required=True, metavar="DATASET=FILE")
    parser.add_argument("--methods", default=methods)
    parser.add_argument("--streams", default=streams)
    parser.add_argument("--n", type=int, default=n)
    parser.add_argument("--seed", type=int, default=0, help="of the streams")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--part", default="0/1", help="this process's share of the streams, K/N")
    parser.add_argument("--out", type=Path, default=Path(out))


@dataclass(frozen=True)
class Job:
    """One stream to record.

    Args:
        options: of the recording.
        dataset: the data set's name.
        file: the source model.
        method: that adapts; predictions are taken after the update.
        stream: a corruption, a corruption followed by " by class" (sorted), or "dynamic".
    """

    options: argparse.Namespace
    dataset: str
    file: str
    method: str
    stream: str

    @property
    def out(self) -> Path:
        """The file to write."""
        folder: Path = self.options.out
        return folder / f"{self.dataset}-{self.method}-{self.stream}.npz"

    def attach(self) -> tuple[nn.Module, Adapter]:
        """Return the source model, and the method attached to it."""
        device = self.options.device
        model = sicl.load_model(self.file, device=device)
        source = source_data(load_dataset(self.dataset, self.options.data, "val"), n=2000, device=device)
        spec = replace(METHODS[self.method].for_dataset(self.dataset), predict="after")
        return model, spec.attach(model, source=source)

    def record(self, adapter: Adapter, look: Callable[[Moment], Signals]) -> None:
        """Adapt over the stream, and write what `look` gives for each moment, with the labels."""
        started, options = time.perf_counter(), self.options
        if self.stream == "dynamic":
            stream: Benign | Dynamic = Dynamic(
                corruptions=VALIDATION_CORRUPTIONS,
                severity=5,
                per_corruption=options.n // len(VALIDATION_CORRUPTIONS),
                seed=options.seed,
            )
        else:
            corruption = self.stream.removesuffix(BY_CLASS)
            order = "label" if self.stream.endswith(BY_CLASS) else "iid"
            stream = Benign(corruption=corruption, severity=5, n=options.n, seed=options.seed, order=order)
        rows: list[Signals] = []
        target = []
        data = load_dataset(self.dataset, options.data)
        for batch in stream.open(data, device=options.device):
            adapter.step(batch.images, lambda moment: rows.append(look(moment)))
            target.append(batch.labels.cpu())
        arrays = {name: torch.cat([row[name] for row in rows]).cpu().numpy() for name in rows[0]}
        self.out.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(self.out, target=torch.cat(target).numpy(), **arrays)
        print(f"{self.out.name}: {time.perf_counter() - started:.0f} s", flush=True)


def score(path: Path, candidates: dict[str, Candidate]) -> dict[str, object]:
    """Return the scores of every candidate on one stream."""
    with np.load(path) as archive:
        arrays = {name: torch.from_numpy(archive[name]) for name in archive.files}
    right = arrays.pop("label") == arrays.pop("target")
    rows = {}
    for name, candidate in candidates.items():
        confidence = candidate(arrays).float()
        rows[name] = [
            round(100 * expected_calibration_error(confidence, right), 2),
            round(100 * float(confidence.mean() - right.float().mean()), 2),
            round(100 * auroc(confidence, right), 2),
        ]
    dataset, method, job = path.stem.split("-")
    return {"dataset": dataset, "method": method, "stream": job, "n": len(right), "ece, bias, auroc": rows}


def show(streams: list[dict]) -> str:
    """Return a table: a row for each candidate, ECE for each data set and kind of stream, best first."""
    groups: dict[str, list[dict]] = {}
    for stream in streams:
        name = stream["stream"]
        kind = "by class" if name.endswith(BY_CLASS) else "dynamic" if name == "dynamic" else "benign"
        kind = "no adaptation" if stream["method"] == "source" else kind
        groups.setdefault(f"{stream['dataset']}, {kind}", []).append(stream["ece, bias, auroc"])

    def means(name: str, column: int) -> list[float]:
        return [fmean(rows[name][column] for rows in groups[kind]) for kind in sorted(groups)]

    lines = [["candidate", *sorted(groups), "mean ECE", "bias", "AUROC"]]
    lines.append(["---"] * len(lines[0]))
    for name in sorted(streams[0]["ece, bias, auroc"], key=lambda name: fmean(means(name, 0))):
        ece, bias, area = (means(name, column) for column in range(3))
        cells = [*(f"{value:.2f}" for value in ece), f"{fmean(ece):.2f}", f"{fmean(bias):+.1f}"]
        lines.append([name, *cells, f"{fmean(area):.1f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def study(
    description: str | None,
    record: Callable[[Job], None],
    candidates: dict[str, Candidate],
    *,
    methods: str,
    n: int,
    out: str,
    streams: str = ",".join((*VALIDATION_CORRUPTIONS, "dynamic")),
) -> None:
    """Be the command line of a study: `record` streams, `score` the candidates on them, `show` the scores."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    add_options(commands.add_parser("record"), methods=methods, n=n, out=out, streams=streams)
    scoring = commands.add_parser("score")
    scoring.add_argument("folders", type=Path, nargs="+")
    scoring.add_argument("--json", type=Path, required=True)
    showing = commands.add_parser("show")
    showing.add_argument("file", type=Path)
    options = parser.parse_args()
    if options.command == "record":
        for job in missing(options):
            record(job)
    elif options.command == "score":
        files = [path for folder in options.folders for path in sorted(folder.glob("*.npz"))]
        if not files:
            parser.error(f"there are no recordings (.npz) in {', '.join(map(str, options.folders))}")
        scores = [score(path, candidates) for path in files]
        options.json.write_text(json.dumps(scores, separators=(",", ":")) + "\n")
        print(show(scores))
    elif not options.file.is_file():
        parser.error(f"there is no file {options.file}")
    else:
        print(show(json.loads(options.file.read_text())))


def missing(options: argparse.Namespace) -> Iterator[Job]:
    """Yield this process's streams that have no file yet."""
    models = [model.partition("=")[::2] for model in options.model]
    streams, methods = options.streams.split(","), options.methods.split(",")
    jobs = [Job(options, *m, method, stream) for stream in streams for method in methods for m in models]
    part, parts = map(int, options.part.split("/"))
    yield from (job for job in jobs[part::parts] if not job.out.exists())
