"""Print the records of a folder as one Markdown table: a row for each data set and method, means over its streams.

ECE and AUROC are over the stream, in %. "floor" is the ECE that SICL's confidences would have on average if they
were perfectly calibrated: with so many images in fifteen bins it is not 0.

    python results/show.py results/resnet18-cifar10-c
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from statistics import mean

from sicl.bench.run.schema import Record, load_records


def floor(row: dict) -> float:
    """Return the expected ECE of a calibrated confidence with these bins: a mean of absolute normal errors."""
    bins = row["reliability"]
    total = sum(bins["count"])
    sizes = zip(bins["count"], bins["confidence"])
    errors = (n / total * math.sqrt(2 * p * (1 - p) / (math.pi * n)) for n, p in sizes if n)
    return 100 * sum(errors)


def table(records: list[Record]) -> str:
    """Return the table, with the mean over its rows last."""
    groups: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record.status == "done":
            groups[record.dataset, record.stream, record.method].append(record)
    names = list(dict.fromkeys(name for group in groups.values() for r in group for name in r.calibrators))
    head = [
        "data set",
        "stream",
        "method",
        "streams",
        "accuracy",
        *(f"{n}: ECE (AUROC)" for n in names),
        "floor",
    ]
    rows, numbers = [], defaultdict(list)
    for (dataset, stream, method), group in sorted(groups.items()):
        cells = []
        for name in names:
            found = [r.calibrators[name] for r in group if name in r.calibrators]
            ece, auroc = 100 * mean(c["ece"] for c in found), 100 * mean(c["auroc"] or 0.5 for c in found)
            numbers[name].append((ece, auroc))
            cells.append((ece, f"{ece:.1f} ({auroc:.1f})"))
        best = min(ece for ece, _ in cells)
        marked = [f"**{text}**" if ece == best else text for ece, text in cells]
        least = mean(floor(r.calibrators["sicl"]) for r in group)
        share = 100 * mean(r.accuracy or 0.0 for r in group)
        rows.append([dataset, stream, method, str(len(group)), f"{share:.1f}", *marked, f"{least:.1f}"])
    means = [f"{mean(e for e, _ in numbers[n]):.2f} ({mean(a for _, a in numbers[n]):.1f})" for n in names]
    rows.append(["mean", "", "", "", "", *means, ""])
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    print("\n\n".join(table(load_records(folder)) for folder in sys.argv[1:]))
