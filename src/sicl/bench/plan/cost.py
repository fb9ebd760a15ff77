"""What a plan will cost, roughly, before anything is loaded."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sicl.bench.plan.cell import Cell
from sicl.bench.plan.plan import BenchPlan
from sicl.data.files import embedded
from sicl.data.folders import count_folder

_FILE = embedded("sicl.bench.plan", "cost.json")
IMAGES: dict[str, int] = _FILE["images"]
PROTOCOLS: dict[str, int] = _FILE["protocols"]
UNKNOWN_IMAGES = 10_000

GIGAFLOPS: dict[str, float] = _FILE["gigaflops"]
"""Multiply-adds x 2 of one forward pass at 32 pixels."""
IMAGENET_GIGAFLOPS: dict[str, float] = _FILE["imagenet_gigaflops"]
UNKNOWN_GIGAFLOPS = 2.0

METHOD_PASSES: dict[str, int] = _FILE["method_passes"]
CALIBRATOR_PASSES: dict[str, int] = _FILE["calibrator_passes"]
ADAPTIVE = 20
"""Passes of SICL that chooses their number itself."""

GIGAFLOPS_A_SECOND: dict[str, float] = _FILE["gigaflops_a_second"]
"""What small batches reach: one core of a server, and one data-centre GPU."""


@dataclass(frozen=True)
class Cost:
    """A plan's work.

    Args:
        images: images that stream by.
        passes: forward passes of one image.
        gigaflops: operations, in units of 10^9.
    """

    images: int
    passes: float
    gigaflops: float

    def seconds(self, device: str) -> float:
        """Return a rough time for one CPU core or one GPU."""
        return self.gigaflops / GIGAFLOPS_A_SECOND["cuda" if device.startswith("cuda") else "cpu"]


def estimate(plan: BenchPlan) -> Cost:
    """Return what a plan costs: a rough guide, good enough to choose a machine."""
    images, passes, gigaflops = 0, 0.0, 0.0
    for cell in plan.cells:
        n = cell_images(cell)
        method = METHOD_PASSES.get(cell.spec["method"]["name"], 4)
        each = method + sum(_calibrator(item) for item in cell.spec["calibrators"].values())
        images += n
        passes += n * each
        gigaflops += n * each * _forward(cell)
    return Cost(images, passes, gigaflops)


def cell_images(cell: Cell) -> int:
    """Return how many images a cell streams."""
    name, options = cell.spec["dataset"]["name"], cell.spec["stream"]["options"]
    base, _, protocol = name.partition(":")
    size = PROTOCOLS.get(protocol) or IMAGES.get(base.removesuffix("-c"), UNKNOWN_IMAGES)
    if base == "folder":
        size = count_folder(Path(protocol).expanduser())
    if "corruptions" in options:
        n = len(options["corruptions"]) * (options.get("per_corruption") or size)
    else:
        n = options.get("n") or size
    return round(n / (1 - options["share"])) if "share" in options else int(n)


def shape(plan: BenchPlan) -> dict[str, Counter[str]]:
    """Return how many cells there are of each data set, model, method, stream and seed."""
    nouns = ("dataset", "model", "method", "stream", "seed")
    return {noun: Counter(str(cell.identity[noun]) for cell in plan.cells) for noun in nouns}


def _calibrator(item: dict[str, Any]) -> float:
    if item["name"] in ("sicl", "sicl_paper"):
        options = item["options"]
        style, content = options.get("variants", 20), options.get("content_variants", 20)
        return float(ADAPTIVE if style == "adaptive" else style + content + 1)
    return CALIBRATOR_PASSES.get(item["name"], 20)


def _forward(cell: Cell) -> float:
    model = cell.spec["model"]
    words = f"{model['name']} {model['load']} {model['options'].get('arch', '')}".lower()
    found = re.search(r"demo|resnet\d+|vit", words)
    table = IMAGENET_GIGAFLOPS if cell.spec["dataset"]["name"].startswith("imagenet") else GIGAFLOPS
    return table.get(found.group(), UNKNOWN_GIGAFLOPS) if found else UNKNOWN_GIGAFLOPS
