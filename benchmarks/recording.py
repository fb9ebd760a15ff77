"""What the studies share that record a calibration's signals on adapting streams: options, streams and files."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import sicl
from sicl.adapt import METHODS, Adapter, Moment
from sicl.corruptions import VALIDATION_CORRUPTIONS
from sicl.data import load_dataset, source_data
from sicl.streams import Benign, Dynamic

Signals = dict[str, Tensor]
"""N values each, by name."""


def add_options(parser: argparse.ArgumentParser, *, methods: str, n: int, out: str) -> None:
    """Add what a recording needs; the arguments are defaults."""
    parser.add_argument("--data")
    parser.add_argument("--model", action="append", required=True, metavar="DATASET=FILE")
    parser.add_argument("--methods", default=methods)
    parser.add_argument("--streams", default=",".join((*VALIDATION_CORRUPTIONS, "dynamic")))
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
        stream: a corruption, or "dynamic".
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
            stream = Benign(corruption=self.stream, severity=5, n=options.n, seed=options.seed)
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


def missing(options: argparse.Namespace) -> Iterator[Job]:
    """Yield this process's streams that have no file yet."""
    models = [model.partition("=")[::2] for model in options.model]
    streams, methods = options.streams.split(","), options.methods.split(",")
    jobs = [Job(options, *m, method, stream) for stream in streams for method in methods for m in models]
    part, parts = map(int, options.part.split("/"))
    yield from (job for job in jobs[part::parts] if not job.out.exists())
