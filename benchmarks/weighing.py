"""Claim: answers weighed by their clarity make a better confidence than weighed by other label-free measures.

Each stream is played once; its answers are kept and pooled again by every rule. Clean images and the four validation
corruptions at severity 3 and 5; each class by itself; and pictures redrawn in five ways, for a change of domain. Of a
network that does not train itself (fixed, or RoTTA): one that does has no measure between its witnesses.

Run: python benchmarks/weighing.py [--method fixed] [--n 256] [--model demo] [--dataset demo] [--data DIR]
"""

from __future__ import annotations

import argparse
import math
import platform
from collections.abc import Callable, Iterator
from statistics import fmean

import numpy as np
import torch
import torch.nn.functional as F
from information import Recording
from torch import Tensor

import sicl
from sicl.adapt import Method
from sicl.calibrate.sicl.calibration import SiclCalibration
from sicl.calibrate.sicl.information import POWER, Answers, Told, mean_count, pooled, within
from sicl.corruptions import VALIDATION_CORRUPTIONS
from sicl.data import Dataset, load_dataset
from sicl.metrics import auroc, brier_score, expected_calibration_error
from sicl.streams import Benign
from sicl.types import Batch

METHODS: dict[str, Method] = {"fixed": sicl.Source(), "RoTTA": sicl.Rotta()}
RULES: dict[str, Callable[[Told], Tensor]] = {
    "equal": lambda told: torch.zeros_like(told.doubt),
    "information": lambda told: POWER * told.information / math.log(told.n_classes),
    "share of variety": lambda told: 40 * told.information / told.variety.clamp_min(1e-6),
    "doubt": lambda told: -POWER * told.doubt / math.log(told.n_classes),
    "clarity": lambda told: POWER * told.clarity,
}
"""The logarithm of what an answer counts; each factor is the best of some that were tried."""
Scores = dict[str, tuple[float, float, float]]


def redrawn(images: Tensor, how: str) -> Tensor:
    """Return N x 3 x H x W images as another hand might have drawn them."""
    grey = images.mean(dim=1, keepdim=True).expand_as(images)
    if how == "grey":
        return grey.contiguous()
    if how == "inverted":
        return 1 - images
    if how == "posterised":
        return (3 * images).round() / 3
    side = max(3, images.shape[-1] // 24) | 1
    padded = F.pad(images, (side // 2,) * 4, mode="reflect")
    if how == "edges":
        return (1 - 4 * (grey - F.avg_pool2d(padded, side, stride=1).mean(1, keepdim=True)).abs()).clamp(0, 1)
    patches = F.unfold(padded, side).view(len(images), images.shape[1], side * side, -1)
    return patches.median(dim=2).values.view_as(images)


DRAWN = ("grey", "inverted", "posterised", "edges", "flattened")


def streams(data: Dataset, n: int) -> Iterator[tuple[str, list[Batch]]]:
    """Yield every stream's group and batches."""
    clean = Benign(corruption="clean", n=min(n, len(data)))
    yield "corrupted", list(clean.open(data))
    for name in VALIDATION_CORRUPTIONS:
        for severity in (3, 5):
            yield "corrupted", list(Benign(corruption=name, severity=severity, n=clean.n).open(data))
    for label in range(min(10, data.n_classes)):
        one = data.subset(np.flatnonzero(data.labels == label))
        yield "a single class", list(Benign(corruption="clean", n=min(n, len(one))).open(one))
    for how in DRAWN:
        made = (Batch(redrawn(b.images, how), b.labels, b.domains) for b in clean.open(data))
        yield "redrawn", list(made)


def confidence(answers: Answers, scores: Tensor) -> Tensor:
    """Return what answers make that count by exp(score), as SICL pools them."""
    owners = torch.tensor([[who == own for own, _ in answers.names] for who in answers.whose])
    voices = (mean_count(scores, owners) / 2).softmax(dim=0)
    return pooled(answers, within(scores, owners), voices)[0]


def scored(said: Tensor, right: Tensor) -> tuple[float, float, float]:
    """Return ECE, AUROC and Brier score in %."""
    return (
        100 * expected_calibration_error(said, right),
        100 * auroc(said, right),
        100 * brier_score(said, right),
    )


def measured(model: torch.nn.Module, method: Method, batches: list[Batch]) -> Scores:
    """Return the scores of the softmax and of every rule on a stream."""
    trusted = sicl.SICL(engine="twin").attach(method.attach(model))
    assert isinstance(trusted.calibration, SiclCalibration)
    recording = trusted.calibration.information = Recording()
    out = [trusted(batch.images) for batch in batches]
    right = torch.cat([each.labels == batch.labels for each, batch in zip(out, batches)])
    found = {"softmax": scored(torch.cat([each.signals["softmax"] for each in out]), right)}
    for name, rule in RULES.items():
        said = torch.cat([confidence(answers, rule(told)) for answers, told in recording.seen])
        found[name] = scored(said, right)
    return found


def table(groups: dict[str, list[Scores]]) -> str:
    """Return means over the streams of each group, a row for each rule."""
    heads = [f"{group}, {len(found)}" for group, found in groups.items()]
    lines = [f"| weighed by | {' | '.join(heads)} |", "| --- " * (len(heads) + 1) + "|"]
    for name in ("softmax", *RULES):
        cells = []
        for found in groups.values():
            ece, ranks, brier = (fmean(each[name][i] for each in found) for i in range(3))
            cells.append(f"{ece:.1f} ({ranks:.1f}), {brier:.1f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", choices=[*METHODS], default="fixed")
    parser.add_argument("--n", type=int, default=256, help="images a stream")
    parser.add_argument("--model", default="demo", help="as `load_model` takes it")
    parser.add_argument("--dataset", default="demo", help="as `load_dataset` takes it")
    parser.add_argument("--data", help="the folder of data sets")
    options = parser.parse_args()
    model, data = sicl.load_model(options.model), load_dataset(options.dataset, options.data)
    groups: dict[str, list[Scores]] = {}
    for group, batches in streams(data, options.n):
        groups.setdefault(group, []).append(measured(model, METHODS[options.method], batches))
    print(table(groups))
    print(
        f"ECE (AUROC), Brier in %, {options.n} images a stream; {platform.machine()}, torch {torch.__version__}"
    )


if __name__ == "__main__":
    main()
