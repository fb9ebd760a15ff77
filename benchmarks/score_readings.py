"""Score what `benchmarks/readings.py` recorded: ECE, AUROC and bias of every reading, and of their means.

python benchmarks/score_readings.py FOLDER [FOLDER ...] --json results/readings-validation.json
python benchmarks/score_readings.py --markdown results/readings-validation.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from sicl.metrics import auroc, expected_calibration_error

HEALTHY = ("tent", "eata", "sar", "rotta", "sotta")
MEANS = {
    "mean of stem swap, content x1, mirror (pooled)": [
        "stem.swap0.pooled.soft",
        "layer1.content1.pooled.soft",
        "flip.soft",
    ],
    "mean of stem swap, content x1, mirror (frozen)": [
        "stem.swap0.frozen.soft",
        "layer1.content1.frozen.soft",
        "flip.soft",
    ],
    "mean of Gaussian x2, content x1, mirror (frozen)": [
        "layer1.channel2.frozen.soft",
        "layer1.content1.frozen.soft",
        "flip.soft",
    ],
}
PRINTED = ("layer1.channel1.frozen.hard", "layer1.content1.frozen.hard")


def score(path: Path) -> dict[str, object]:
    """Return one stream's accuracy and the scores of every reading."""
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    right = torch.from_numpy(arrays.pop("labels") == arrays.pop("target"))
    signals = {name: torch.from_numpy(values.astype(np.float32) / 255) for name, values in arrays.items()}
    for name, parts in MEANS.items():
        if all(part in signals for part in parts):
            signals[name] = torch.stack([signals[part] for part in parts]).mean(dim=0)
    signals["printed: style x (1 - content), hard votes, frozen"] = signals[PRINTED[0]] * (
        1 - signals[PRINTED[1]]
    )
    rows = {}
    for name, confidence in signals.items():
        rows[name] = {
            "ece": round(100 * expected_calibration_error(confidence, right), 2),
            "auroc": round(100 * auroc(confidence, right), 2),
            "bias": round(100 * float(confidence.mean() - right.float().mean()), 2),
        }
    accuracy = 100 * float(right.float().mean())
    return {"stream": path.stem, "n": len(right), "accuracy": round(accuracy, 2), "readings": rows}


def markdown(streams: list[dict[str, object]]) -> str:
    """Return a table of means over the streams of each data set; forced collapse is left out."""
    # DATASET[-MODEL]-METHOD-CORRUPTION-ORDER
    parts = {id(s): str(s["stream"]).rsplit("-", 3) for s in streams}
    healthy = [s for s in streams if parts[id(s)][1] in HEALTHY and parts[id(s)][3] == "iid"]
    sets = sorted({parts[id(s)][0].split("-")[0] for s in healthy})
    lines = ["| reading | " + " | ".join(f"{name}: ECE | AUROC | bias" for name in sets) + " |"]
    lines.append("|" + " --- |" * (1 + 3 * len(sets)))
    groups = [[s["readings"] for s in healthy if str(s["stream"]).startswith(f"{name}-")] for name in sets]
    common = [key for key in groups[0][0] if all(key in rows for group in groups for rows in group)]

    def mean(group: list, key: str, what: str) -> float:
        return sum(rows[key][what] for rows in group) / len(group)

    for key in sorted(common, key=lambda k: sum(mean(group, k, "ece") for group in groups)):
        cells = [
            f"{mean(g, key, 'ece'):.1f} | {mean(g, key, 'auroc'):.1f} | {mean(g, key, 'bias'):+.1f}"
            for g in groups
        ]
        lines.append(f"| {key} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    if options.markdown:
        print(markdown(json.loads(options.markdown.read_text())["streams"]))
        return
    streams = [score(path) for folder in options.folders for path in sorted(folder.glob("*.npz"))]
    if options.json:
        options.json.write_text(json.dumps({"streams": streams}, separators=(",", ":")) + "\n")
    print(markdown(streams))


if __name__ == "__main__":
    main()
