"""Claim: the answers that tell right from wrong predictions best are the clear ones.

The embedded network, fixed, on clean images, on clean images of a single class, and under the validation corruptions at
severity 5. For every answer of every witness: how clear it is (how little doubt it leaves, at what price in variety),
which takes no labels; and the AUROC of its vote, which does.

Run: python benchmarks/information.py [--n 256] [--figure docs/images/information.svg]
"""

from __future__ import annotations

import argparse
import math
import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr

import sicl
from sicl.bench.tables.svg import Frame, Scale, tag, text
from sicl.calibrate.sicl.calibration import SiclCalibration
from sicl.calibrate.sicl.information import Answers, Information, Told, told
from sicl.corruptions import VALIDATION_CORRUPTIONS
from sicl.data import load_dataset
from sicl.metrics import auroc
from sicl.streams import Benign

OWN = "network softmax"
ONE = "clean, one class"
CLASS = 6
COLOURS = ("#6b7280", "#111827", "#d11149", "#2563eb", "#17875a", "#ca8a04")
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#5c6470}.grid{stroke:#eceef2;fill:none}"
    ".axis{stroke:#8b93a1;fill:none}.end{text-anchor:end}.mid{text-anchor:middle}"
)


@dataclass(frozen=True)
class Dot:
    """An answer on a stream: how clear it is, and AUROC."""

    clarity: float
    auroc: float


class Recording(Information):
    """Keeps all answers that it is shown, and what they had told by then."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Answers, Told]] = []

    def observe(self, answers: Answers) -> Told:
        """Take the answers to a batch, and keep them."""
        told = super().observe(answers)
        self.seen.append((answers, told))
        return told


def dots(name: str, n: int) -> dict[str, Dot]:
    """Return all answers about a stream's images, by name."""
    trusted, data = sicl.SICL().attach(sicl.load_model("demo")), load_dataset("demo")
    assert isinstance(trusted.calibration, SiclCalibration)
    recording = trusted.calibration.information = Recording()
    if name == ONE:
        data, name = data.subset(np.flatnonzero(data.labels == CLASS)), "clean"
    stream = Benign(corruption=name, severity=5, n=min(n, len(data))).open(data)
    right = torch.cat([trusted(batch.images).labels == batch.labels for batch in stream])
    votes = torch.cat([answers.votes for answers, _ in recording.seen], dim=1)
    means = torch.stack([answers.sums for answers, _ in recording.seen]).sum(dim=0) / votes.shape[1]
    clarity = told(means).clarity
    names = [f"{who} {name}" for who, name in recording.seen[0][0].names]
    return {name: Dot(float(clear), auroc(vote, right)) for name, clear, vote in zip(names, clarity, votes)}


def table(streams: dict[str, dict[str, Dot]]) -> str:
    """Return clarity and AUROC in %, an answer a row; and how far their ranks go together."""
    lines = [f"| clarity, AUROC | {' | '.join(streams)} |", "| --- " * (len(streams) + 1) + "|"]
    for name in streams["clean"]:
        cells = [
            f"{100 * found[name].clarity:.1f}, {100 * found[name].auroc:.1f}" for found in streams.values()
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    ranks = [spearmanr([(t.clarity, t.auroc) for t in found.values()])[0] for found in streams.values()]
    return "\n".join([*lines, f"| rank correlation | {' | '.join(f'{r:.2f}' for r in ranks)} |"])


def figure(streams: dict[str, dict[str, Dot]]) -> str:
    """Return an SVG with a dot an answer, a colour a stream, a ring for the network's own softmax."""
    every = [each for found in streams.values() for each in found.values()]
    low, floor = (math.floor(10 * min(kind)) for kind in zip(*((t.clarity, t.auroc) for t in every)))
    frame = Frame(560, 320, Scale(low / 10, 1, 44, 430), Scale(floor / 10, 1, 278, 24))
    shown, heights = ([i / 10 for i in range(lowest, 11)] for lowest in (low, floor))
    parts = [tag("style", STYLE), tag("rect", width=560, height=320, fill="#fff")]
    parts.append(frame.axes(shown, heights, lambda x: f"{100 * x:.0f}", lambda y: f"{100 * y:.0f}"))
    for i, (colour, (stream, found)) in enumerate(zip(COLOURS, streams.items())):
        for name, each in found.items():
            tip = tag(
                "title", f"{stream}, {name}: {100 * each.clarity:.1f} %, AUROC {100 * each.auroc:.1f} %"
            )
            look = (
                {"fill": "#fff", "stroke": colour, "stroke_width": "2"} if name == OWN else {"fill": colour}
            )
            place = {"cx": frame.x(each.clarity), "cy": frame.y(each.auroc)}
            parts.append(tag("circle", tip, r=4, fill_opacity="0.85", **place, **look))
        parts.append(text(stream.replace("_", " "), 442, 36 + 16 * i, style=f"fill:{colour};font-weight:600"))
    parts.append(tag("circle", cx=447, cy=146, r=4, fill="#fff", stroke="#5c6470", stroke_width="2"))
    parts.append(text("the softmax itself", 456, 150))
    parts.append(text("how clear an answer is, %", 237, 312, class_="mid"))
    parts.append(text("AUROC of right against wrong predictions, %", 44, 12))
    return frame.svg("".join(parts), "Information of answers and AUROC", xmlns="http://www.w3.org/2000/svg")


def main() -> None:
    """Print the table, and draw the figure where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=256, help="images a stream")
    parser.add_argument("--figure", type=Path, help="an SVG file to write")
    options = parser.parse_args()
    streams = {name: dots(name, options.n) for name in ("clean", ONE, *VALIDATION_CORRUPTIONS)}
    print(table(streams))
    print(f"{options.n} images a stream; {platform.machine()}, torch {torch.__version__}")
    if options.figure:
        options.figure.write_text(figure(streams))


if __name__ == "__main__":
    main()
