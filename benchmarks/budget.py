"""What cheaper variants change: bfloat16 and the adaptive budget against 20 variants in float32.

Runs SICL's default signals after TENT, on corrupted streams of the embedded CIFAR-10 test images with the
embedded network; each batch is calibrated several ways at once. Prints ECE, the variants spent on a sample,
and how far confidences are from the reference's.

    python benchmarks/budget.py [--n 960] [--corruptions gaussian_blur,speckle_noise] [--seed 0] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import sicl
from sicl.calibrate import Panel
from sicl.data import load_dataset
from sicl.metrics import expected_calibration_error
from sicl.streams import Benign

BOTH: dict[str, Any] = {"relaxation": "none"}
TWENTY: dict[str, Any] = {**BOTH, "variants": 20, "content_variants": 20}


def specs(votes: str, norm: str, seed: int) -> dict[str, sicl.SICL]:
    """The ways to compare; the first is the reference."""
    shared: dict[str, Any] = {"votes": votes, "seed": seed} | ({} if norm == "default" else {"norm": norm})
    return {
        "20 float32": sicl.SICL(**TWENTY, **shared, engine="plain"),
        "20 bfloat16": sicl.SICL(**TWENTY, **shared, precision="bfloat16"),
        "8 bfloat16": sicl.SICL(
            **{**TWENTY, "variants": 8, "content_variants": 8}, **shared, precision="bfloat16"
        ),
        "adaptive bfloat16": sicl.SICL(**BOTH, variants="adaptive", **shared, precision="bfloat16"),
    }


def run(corruption: str, votes: str, norm: str, n: int, seed: int) -> dict[str, dict[str, float]]:
    """Return, for each way, ECE in points, variants a sample, and how far it is from the reference."""
    data = load_dataset("demo")
    panel = Panel(specs(votes, norm, seed), sicl.Tent().attach(sicl.load_model("demo")))
    confidences: dict[str, list[torch.Tensor]] = {name: [] for name in panel.calibrations}
    correct = []
    for batch in Benign(corruption=corruption, batch_size=64, n=n).open(data):
        out = panel(batch.images)
        for name, prediction in out.items():
            confidences[name].append(prediction.confidence)
        correct.append(prediction.labels == batch.labels)
    right = torch.cat(correct)
    reference = torch.cat(confidences["20 float32"])
    rows = {}
    for name, parts in confidences.items():
        confidence = torch.cat(parts)
        live: Any = panel.calibrations[name]
        sent = sum(e.rows_sent for e in {q.engine for w in live.witnesses for q in w.questions.values()})
        rows[name] = {
            "ece": 100 * float(expected_calibration_error(confidence, right)),
            # The mirror image went through an engine too, once.
            "variants": (sent / len(right) - 1) / 2,
            "difference": float((confidence - reference).abs().mean()),
            "accuracy": 100 * float(right.float().mean()),
        }
    return rows


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", type=int, default=960)
    parser.add_argument("--corruptions", default="gaussian_blur,speckle_noise,saturate,spatter")
    parser.add_argument("--votes", default="soft,hard")
    parser.add_argument("--norms", default="default")
    parser.add_argument("--seed", type=int, default=0, help="of the variants' noise")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result = []
    print(
        "| corruption | votes | norm | way | ECE | variants a sample, each kind | mean difference |\n|"
        + "---|" * 7
    )
    for votes in options.votes.split(","):
        for norm in options.norms.split(","):
            for corruption in options.corruptions.split(","):
                rows = run(corruption, votes, norm, options.n, options.seed)
                result.append(
                    {
                        "corruption": corruption,
                        "votes": votes,
                        "norm": norm,
                        "n": options.n,
                        "seed": options.seed,
                        "rows": rows,
                    }
                )
                for name, row in rows.items():
                    print(
                        f"| {corruption} | {votes} | {norm} | {name} | {row['ece']:.2f} | {row['variants']:.1f} "
                        f"| {row['difference']:.4f} |",
                        flush=True,
                    )
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
