"""Measure what each calibrator costs a batch, and how far it lowers the ECE of an adapting model.

Cost is given twice, in units of one forward pass of the batch: by arithmetic (multiply-adds counted by torch)
and by time. The ECE is over the embedded test images under TENT, one stream a corruption at severity 5.

    python benchmarks/calibrators.py                      # 15 corruptions x 1,500 images
    python benchmarks/calibrators.py --corruptions validation --samples 512 --device cuda
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import sicl
from sicl.adapt import Adapter, Moment
from sicl.calibrate import CALIBRATORS, Calibration, Calibrator
from sicl.corruptions import CORRUPTIONS, VALIDATION_CORRUPTIONS
from sicl.data import Dataset, load_dataset, source_data
from sicl.metrics import auroc, expected_calibration_error

Specs = dict[str, Calibrator]
WARM, MEASURED = 20, 20  # TransCal refits every 10 batches: both are multiples


def as_images(dataset: Dataset, n: int, corruption: str, device: str) -> Tensor:
    """Return the first `n` images with one corruption, as a stream has them."""
    pixels = dataset.read(np.arange(n), corruption, severity=5)
    return torch.from_numpy(np.ascontiguousarray(pixels)).to(device).permute(0, 3, 1, 2).float().div(255)


def seconds(device: str, work: object) -> float:
    """Return how long a call takes, the device's queue included."""
    if device != "cpu":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()  # type: ignore[operator]
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def flops(work: object) -> int:
    """Return the arithmetic of a call, as torch counts it (matrix products and convolutions)."""
    with FlopCounterMode(display=False) as counter:
        work()  # type: ignore[operator]
    return counter.get_total_flops()


def measure_cost(
    specs: Specs, model: nn.Module, batches: list[Tensor], source: sicl.SourceData, device: str
) -> dict[str, dict[str, float]]:
    """Return each calibrator's (flops, seconds) a batch over those of one forward pass, under TENT."""
    rows: dict[str, dict[str, float]] = {}
    for name, spec in specs.items():
        adapter = sicl.Tent().attach(model)
        calibration = spec.calibration(adapter, source=source)
        time_ratio = run_costs(adapter, calibration, batches, device, counted=False)
        calibration.reset()
        flop_ratio = run_costs(adapter, calibration, batches, device, counted=True)
        rows[name] = {"passes_by_arithmetic": flop_ratio, "passes_by_time": time_ratio}
    return rows


def run_costs(
    adapter: Adapter, calibration: Calibration, batches: list[Tensor], device: str, *, counted: bool
) -> float:
    """Return the mean cost of the calibration over the mean cost of a forward pass, after a warm-up."""
    own, forward = [], []

    def observe(moment: Moment) -> None:
        def one_forward() -> None:
            with torch.no_grad():
                moment.network(moment.images)

        for work, costs in ((one_forward, forward), (lambda: calibration.predict(moment), own)):
            costs.append(flops(work) if counted else seconds(device, work))

    for i in range(WARM + MEASURED):
        adapter.step(batches[i % len(batches)], observe)
    return sum(own[WARM:]) / sum(forward[WARM:])


def measure_ece(
    specs: Specs, model: nn.Module, images: Tensor, labels: Tensor, source: sicl.SourceData, batch: int
) -> dict[str, dict[str, float]]:
    """Return accuracy, ECE and AUROC (%) of every calibrator on one stream under TENT."""
    adapter = sicl.Tent(predict="after").attach(model)
    panel = sicl.Panel(specs, adapter, source=source)
    confidence: dict[str, list[Tensor]] = {name: [] for name in specs}
    predicted = []
    for part in images.split(batch):
        out = panel(part)
        predicted.append(out["softmax"].labels.cpu())
        for name, prediction in out.items():
            confidence[name].append(prediction.confidence.cpu())
    right = torch.cat(predicted) == labels
    scores = {}
    for name, parts in confidence.items():
        whole = torch.cat(parts)
        scores[name] = {
            "ece": 100 * expected_calibration_error(whole, right),
            "auroc": 100 * auroc(whole, right),
            "accuracy": 100 * float(right.float().mean()),
        }
    return scores


def table(
    costs: dict[str, dict[str, float]], scores: dict[str, dict[str, dict[str, float]]], about: str
) -> str:
    """Return the results as a Markdown table."""
    lines = [
        about,
        "",
        "| calibrator | passes (arithmetic) | passes (time) | ECE % | ECE below softmax | AUROC % |",
    ]
    lines.append("|---|---|---|---|---|---|")
    for name in costs:
        streams = list(scores.values())
        ece = np.mean([s[name]["ece"] for s in streams])
        rank = np.mean([s[name]["auroc"] for s in streams])
        better = sum(s[name]["ece"] < s["softmax"]["ece"] for s in streams)
        cost = costs[name]
        lines.append(
            f"| {name} | {cost['passes_by_arithmetic']:.1f} | {cost['passes_by_time']:.1f} | {ece:.1f} "
            f"| {better} of {len(streams)} | {rank:.1f} |"
        )
    header = "| corruption | accuracy % | " + " | ".join(costs) + " |"
    lines += ["", "ECE % of each stream:", "", header, "|---" * (len(costs) + 2) + "|"]
    for corruption, stream in scores.items():
        values = " | ".join(f"{stream[name]['ece']:.1f}" for name in costs)
        lines.append(f"| {corruption} | {stream['softmax']['accuracy']:.1f} | {values} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run both measurements, print the table and save it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corruptions", default="report", help="report (15), validation (4) or names with commas"
    )
    parser.add_argument(
        "--calibrators", default=",".join(CALIBRATORS), help="names with commas; softmax first"
    )
    parser.add_argument("--model", default="demo", help="demo, or the checkpoint of a CIFAR-10 classifier")
    parser.add_argument("--samples", type=int, default=1500)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    warnings.simplefilter("error")
    groups = {"report": tuple(CORRUPTIONS), "validation": tuple(VALIDATION_CORRUPTIONS)}
    specs = {name: CALIBRATORS[name]() for name in options.calibrators.split(",")}
    names = groups.get(options.corruptions) or tuple(options.corruptions.split(","))

    model = sicl.load_model(options.model, device=options.device)
    dataset = load_dataset("demo", split="test")
    source = source_data(load_dataset("demo", split="val"), device=options.device)
    clean = as_images(dataset, options.samples, "clean", options.device)
    whole = [part for part in clean.split(options.batch) if len(part) == options.batch]
    costs = measure_cost(specs, model, whole, source, options.device)
    labels = torch.from_numpy(dataset.labels[: options.samples])
    scores = {}
    for name in names:
        images = as_images(dataset, options.samples, name, options.device)
        scores[name] = measure_ece(specs, model, images, labels, source, options.batch)
        print(name, {key: round(value["ece"], 1) for key, value in scores[name].items()}, flush=True)
    hardware = (
        torch.cuda.get_device_name() if options.device != "cpu" else f"CPU, {torch.get_num_threads()} threads"
    )
    about = (
        f"Model {Path(options.model).stem}, TENT, batch {options.batch}, {options.samples} images a stream, "
        f"{len(names)} corruptions at severity 5, predictions after the update. {hardware}, "
        f"torch {torch.__version__}, Python {platform.python_version()}."
    )
    text = table(costs, scores, about)
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    stem = f"calibrators_{options.device.split(':')[0]}"
    stem += "" if options.corruptions == "report" else f"_{options.corruptions}"
    stem += "" if options.model == "demo" else f"_{Path(options.model).stem}"
    (options.out / f"{stem}.md").write_text(text)
    content = {"about": about, "costs": costs, "scores": scores}
    (options.out / f"{stem}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
