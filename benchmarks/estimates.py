"""What confidence is worth without labels, sample by sample: estimated accuracy, promised risk, prediction sets.

    python benchmarks/estimates.py record FILE [--methods source tent rotta] [--severities 1 3 5] [--n 256]
    python benchmarks/estimates.py show FILE [--json FILE] [--svg FILE]
    python benchmarks/estimates.py live [--methods source] [--severities 3] [--n 512] [--batches 1 64]

`record` plays the embedded network's corrupted test images, once for softmax, PseudoCal, SICL and AETTA's idea, and
appends a line a stream (it skips those that are there). `show` says how far the estimated accuracy of a window of 256
samples lies from the true one, how often what `accept(risk=...)` takes is wrong, and what `sets(coverage=0.9)` covers.
`live` shows such streams to SICL in batches of several sizes, and accepts while they come.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
from risk import PROMISED, drawing
from torch import Tensor

import sicl
from sicl.adapt import METHODS, Moment
from sicl.calibrate.mc_dropout import dropout_places
from sicl.corruptions import CORRUPTIONS
from sicl.data import load_dataset
from sicl.engine.norms import protected_statistics
from sicl.selective import DELTA, expected_threshold

CALIBRATORS = {"softmax": sicl.Softmax(), "pseudocal": sicl.PseudoCal(), "sicl": sicl.SICL()}
RISKS = (0.05, 0.1, 0.2)
WINDOW, BATCH, SLACK = 256, 64, 0.01


class Aetta:
    """Accuracy by disagreement under dropout, with AETTA's correction for collapse (Lee et al., CVPR 2024).

    Of N passes with dropout after every stage, let PDD be the share of (image, pass) whose class differs from the
    network's own. If the passes are calibrated, PDD equals the error rate. A network that has collapsed agrees with
    itself though it is wrong; its mean probabilities over batch and passes, p, are then far from even, so

        error = PDD * (E / E_max) ** -a,    E = -sum_k p_k log p_k,    E_max = log K,    a = 3,

    and the estimated accuracy is 1 - error, not below 0.
    """

    def __init__(
        self, network: torch.nn.Module, *, p: float = 0.4, passes: int = 10, power: float = 3.0
    ) -> None:
        self.network, self.p, self.passes, self.power = network, p, passes, power
        self.generator = torch.Generator().manual_seed(0)
        self.places = [network.get_submodule(name) for name in dropout_places(network, 4)]

    @torch.no_grad()
    def __call__(self, moment: Moment) -> float:
        """Return the estimated accuracy of a batch."""
        labels, probabilities, different = moment.logits.argmax(dim=1), [], []
        with ExitStack() as stack:
            stack.enter_context(protected_statistics(self.network))
            for place in self.places:
                stack.callback(place.register_forward_hook(self._drop).remove)
            for _ in range(self.passes):
                logits = self.network(moment.images)
                probabilities.append(logits.softmax(dim=1).mean(dim=0))
                different.append((logits.argmax(dim=1) != labels).double().mean())
        mean = torch.stack(probabilities).mean(dim=0)
        entropy = float(torch.special.entr(mean).sum()) / np.log(len(mean))
        return max(0.0, 1 - float(torch.stack(different).mean()) * entropy**-self.power)

    def _drop(self, _module: Any, _inputs: Any, output: Tensor) -> Tensor:
        kept = torch.rand(output.shape, generator=self.generator) >= self.p
        return output * kept / (1 - self.p)


def play(method: str, pixels: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Return what all say about one stream."""
    adapter = METHODS[method].for_dataset("demo").attach(sicl.load_model("demo"))
    panel, aetta = sicl.Panel(CALIBRATORS, adapter), Aetta(adapter.network)
    told: dict[str, Any] = {name: [] for name in ("right", "aetta")}
    told |= {what: {name: [] for name in CALIBRATORS} for what in ("confidence", "covered", "size")}
    for start in range(0, len(pixels), BATCH):
        images = torch.from_numpy(pixels[start : start + BATCH]).permute(0, 3, 1, 2).float() / 255
        truth = torch.from_numpy(labels[start : start + BATCH])
        estimates: list[float] = []
        outs: dict[str, sicl.Prediction] = {}

        def observe(moment: Moment, outs: dict[str, Any] = outs, said: list[float] = estimates) -> None:
            outs.update({name: c.predict(moment) for name, c in panel.calibrations.items()})
            said.append(aetta(moment))

        adapter.step(images, observe)
        told["aetta"] += [round(estimates[0], 4)] * len(images)
        told["right"] += (outs["sicl"].labels == truth).int().tolist()
        for name, out in outs.items():
            sets = out.sets(coverage=0.9)
            told["confidence"][name] += [round(value, 5) for value in out.confidence.tolist()]
            told["covered"][name] += sets[torch.arange(len(truth)), truth].int().tolist()
            told["size"][name] += sets.sum(dim=1).tolist()
    return told


def record(options: argparse.Namespace) -> None:
    """Append the streams that are not in the file."""
    data = load_dataset("demo")
    chosen = np.random.default_rng(0).permutation(len(data))[: options.n]
    done = {(row["method"], row["corruption"], row["severity"]) for row in rows(options.file)}
    streams = [(m, c, s) for s in options.severities for c in CORRUPTIONS for m in options.methods]
    for method, corruption, severity in streams:
        if (method, corruption, severity) in done:
            continue
        pixels = data.read(chosen, corruption, severity=severity)
        told = play(method, pixels, data.labels[chosen])
        row = {"method": method, "corruption": corruption, "severity": severity, **told}
        with options.file.open("a") as file:
            file.write(json.dumps(row) + "\n")


def accepted(method: str, pixels: np.ndarray, labels: np.ndarray, batch: int) -> np.ndarray:
    """Return what SICL accepts of a stream as it comes, and what of that is wrong: 2 x risks x N."""
    trusted = sicl.SICL().attach(METHODS[method].for_dataset("demo").attach(sicl.load_model("demo")))
    found = []
    for start in range(0, len(pixels), batch):
        out = trusted(torch.from_numpy(pixels[start : start + batch]).permute(0, 3, 1, 2).float() / 255)
        taken = torch.stack([out.accept(risk=risk) for risk in RISKS])
        wrong = out.labels != torch.from_numpy(labels[start : start + batch])
        found.append(torch.stack([taken, taken & wrong]))
    return torch.cat(found, dim=2).numpy()


def live(options: argparse.Namespace) -> None:
    """Print what is accepted at each risk, how often it is wrong and in how many streams the risk is kept, in %."""
    data = load_dataset("demo")
    chosen = np.random.default_rng(0).permutation(len(data))[: options.n]
    streams = [(m, c, s) for s in options.severities for c in CORRUPTIONS for m in options.methods]
    for batch in options.batches:
        read = (data.read(chosen, c, severity=s) for _, c, s in streams)
        both = zip((m for m, *_ in streams), read)
        taken, wrong = np.stack([accepted(m, p, data.labels[chosen], batch).sum(2) for m, p in both], axis=1)
        kept = wrong <= taken * (np.array(RISKS) + SLACK)
        told = {
            f"risk {risk:g}": {
                "realised": round(100 * wrong[:, i].sum() / max(1, taken[:, i].sum()), 1),
                "kept": round(100 * kept[:, i].mean(), 1),
                "accepted": round(100 * taken[:, i].sum() / (len(streams) * options.n), 1),
            }
            for i, risk in enumerate(RISKS)
        }
        print(json.dumps({"batch": batch, "streams": len(streams), "images": options.n, **told}), flush=True)


def rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the streams of a file."""
    if path.exists():
        with path.open() as file:
            yield from map(json.loads, file)


def windows(row: dict[str, Any], name: str) -> np.ndarray:
    """Return |estimated - true accuracy| of a stream's windows."""
    said = np.array(row["aetta"] if name == "aetta" else row["confidence"][name])
    right = np.array(row["right"], float)
    starts = range(0, len(right) - WINDOW + 1, WINDOW)
    return np.array([abs(said[s : s + WINDOW].mean() - right[s : s + WINDOW].mean()) for s in starts])


def realised(row: dict[str, Any], name: str, risk: float, delta: float | None) -> tuple[float, float]:
    """Return (error rate, share) of what is accepted at a promised risk; 0 where nothing is."""
    confidence, right = np.array(row["confidence"][name]), np.array(row["right"], float)
    taken = confidence >= expected_threshold(torch.from_numpy(confidence), risk, delta=delta)
    return (float(1 - right[taken].mean()) if taken.any() else 0.0), float(taken.mean())


def summary(streams: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Return one calibrator's numbers over streams, in %."""
    errors = np.concatenate([windows(row, name) for row in streams])
    told: dict[str, Any] = {"estimate_error": 100 * errors.mean(), "within_5": 100 * (errors <= 0.05).mean()}
    if name == "aetta":
        return told
    for risk in RISKS:
        for delta in (None, DELTA):
            found = np.array([realised(row, name, risk, delta) for row in streams])
            told[f"risk {risk:g}" + ("" if delta is None else f", delta {delta:g}")] = {
                "realised": 100 * found[:, 0].mean(),
                "nine_in_ten": 100 * np.quantile(found[:, 0], 0.9),
                "kept": 100 * (found[:, 0] <= risk + SLACK).mean(),
                "accepted": 100 * found[:, 1].mean(),
            }
    told["coverage_at_90"] = 100 * float(np.mean([np.mean(row["covered"][name]) for row in streams]))
    told["set_size"] = float(np.mean([np.mean(row["size"][name]) for row in streams]))
    return told


def show(options: argparse.Namespace) -> None:
    """Print the numbers by calibrator: over all streams, and by method."""
    every = list(rows(options.file))
    groups = {"all": every} | {m: [r for r in every if r["method"] == m] for m in METHODS}
    numbers = {
        group: {"streams": len(some), **{name: summary(some, name) for name in (*CALIBRATORS, "aetta")}}
        for group, some in groups.items()
        if some
    }
    machine = f"{platform.machine()}, torch {torch.__version__}, {len(every[0]['right'])} images a stream"
    text = json.dumps({"machine": machine, **numbers}, indent=1, default=float)
    print(json.dumps(json.loads(text, parse_float=lambda v: round(float(v), 1)), indent=1))
    if options.json:
        options.json.write_text(text)
    if options.svg:
        curves = {
            name: [[_or_nan(row, name, float(risk)) for row in every] for risk in PROMISED]
            for name in CALIBRATORS
        }
        options.svg.write_text(drawing(curves))


def _or_nan(row: dict[str, Any], name: str, risk: float) -> float:
    error, share = realised(row, name, risk, DELTA)
    return error if share else float("nan")


def main() -> None:
    """Record streams, show what was recorded, or play them live."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("do", choices=("record", "show", "live"))
    parser.add_argument("file", type=Path, nargs="?", default=Path("estimates.jsonl"))
    parser.add_argument("--methods", nargs="+", default=["source", "tent", "rotta"], choices=METHODS)
    parser.add_argument("--severities", nargs="+", type=int, default=[1, 3, 5])
    parser.add_argument("--n", type=int, default=WINDOW)
    parser.add_argument("--batches", nargs="+", type=int, default=[1, BATCH], help="for live")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    options = parser.parse_args()
    {"record": record, "show": show, "live": live}[options.do](options)


if __name__ == "__main__":
    main()
