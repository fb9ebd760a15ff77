"""Train source models on one GPU inside a time budget each, from folders of lossless picture sheets.

Pack the training data into folders of sheets (each folder small enough to send to a machine without a network):

    python benchmarks/train_sources.py pack --root DATA --to carry/a carry/b

Train there; each job is ARCH[-wWIDTH]=MINUTES:

    python benchmarks/train_sources.py train --data carry/a carry/b --out sources resnet50=4 vit_small=4 resnet18=1

Every job prints one JSON line: epochs, seconds an epoch, validation accuracy, hardware, versions and n.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from sicl.data.sheets import read_sheet, write_sheet
from sicl.models.checkpoint import save_checkpoint
from sicl.train import TrainSpec, fit
from sicl.train.loop import Labelled
from sicl.train.spec import NORMALISATION, recipe

SHEET = 5000


def pack(dataset: str, root: Path, folders: list[Path]) -> None:
    """Spread the validation and training images over `folders`, `SHEET` images a sheet, validation first."""
    from sicl.data import load_dataset

    sheets = []
    for split in ("val", "train"):
        data = load_dataset(dataset, root=root, split=split)
        for number, start in enumerate(range(0, len(data), SHEET)):
            index = np.arange(start, min(start + SHEET, len(data)))
            sheets.append((f"{split}-{number:02d}", data.images[index], data.labels[index].tolist()))
    per_folder = -(-len(sheets) // len(folders))
    for position, folder in enumerate(folders):
        folder.mkdir(parents=True, exist_ok=True)
        part = sheets[position * per_folder : (position + 1) * per_folder]
        for name, images, _ in part:
            write_sheet(folder / f"{name}.webp", images, method=4)
        content = {"dataset": dataset, "labels": {name: labels for name, _, labels in part}}
        (folder / "labels.json").write_text(json.dumps(content))


def read(folders: list[Path], split: str) -> tuple[str, Labelled]:
    """Return the data set's name and all of one split's images and labels."""
    images, labels, names = [], [], set()
    for folder in folders:
        content = json.loads((folder / "labels.json").read_text())
        names.add(content["dataset"])
        for name, values in sorted(content["labels"].items()):
            if name.startswith(split):
                images.append(read_sheet(folder / f"{name}.webp", count=len(values)))
                labels += values
    if len(names) != 1 or not images:
        sys.exit(f"{', '.join(map(str, folders))}: no {split} sheets of one data set.")
    return names.pop(), (np.concatenate(images), np.array(labels, np.int64))


def job_spec(job: str, dataset: str, seed: int) -> tuple[str, TrainSpec, float]:
    """Return the name, the fast recipe and the minutes of a job such as "resnet18-w16=2"."""
    match = re.fullmatch(r"((\w+?)(?:-w(\d+))?)=([\d.]+)", job)
    if match is None:
        sys.exit(f"{job}: a job is ARCH[-wWIDTH]=MINUTES, for example resnet18-w16=2.")
    name, arch, width, minutes = match.groups()
    mean, std = NORMALISATION[dataset]
    n_classes = {"cifar10": 10, "cifar100": 100}[dataset]
    spec = replace(
        recipe("fast", arch), width=int(width or 64), n_classes=n_classes, mean=mean, std=std, seed=seed
    )
    return name, spec, float(minutes)


def train(job: str, dataset: str, data: Labelled, val: Labelled, options: argparse.Namespace) -> None:
    """Time two epochs, run as many as fit into the minutes, and save half-precision weights."""
    name, spec, minutes = job_spec(job, dataset, options.seed)
    started = time.perf_counter()
    common = {"val": val, "device": options.device, "compile_model": options.compile}
    trial = fit(replace(spec, epochs=2), *data, **common)
    left = 60 * minutes - (time.perf_counter() - started)
    epochs = max(1, min(options.max_epochs, int(0.97 * left / trial.history[-1].seconds)))
    spec = replace(spec, epochs=epochs)
    result = fit(spec, *data, **common)
    accuracy = result.history[-1].accuracy or 0.0
    metadata = {**spec.model.to_metadata(), "dataset": dataset, "train": spec.to_json()}
    metadata["val_accuracy"] = f"{accuracy:.4f}"
    out = options.out / f"{dataset}-{name}-seed{options.seed}.safetensors"
    save_checkpoint(out, result.model.state_dict(), metadata, dtype=torch.float16)
    seconds = sorted(report.seconds for report in result.history)
    record = {
        "job": name,
        "epochs": epochs,
        "median_epoch_s": round(seconds[len(seconds) // 2], 3),
        "total_s": round(time.perf_counter() - started, 1),
        "val_accuracy": round(accuracy, 4),
        "n_train": len(data[1]),
        "n_val": len(val[1]),
        "device": torch.cuda.get_device_name() if "cuda" in options.device else platform.processor(),
        "torch": torch.__version__,
        "file": str(out),
    }
    print(json.dumps(record), flush=True)


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack")
    packing.add_argument("--dataset", default="cifar10", choices=sorted(NORMALISATION))
    packing.add_argument("--root", type=Path)
    packing.add_argument("--to", type=Path, nargs="+", required=True)
    training = commands.add_parser("train")
    training.add_argument("jobs", nargs="+", metavar="ARCH[-wWIDTH]=MINUTES")
    training.add_argument("--data", type=Path, nargs="+", required=True)
    training.add_argument("--out", type=Path, default=Path("sources"))
    training.add_argument("--seed", type=int, default=0)
    training.add_argument("--device", default="cuda")
    training.add_argument("--compile", action="store_true")
    training.add_argument("--max-epochs", type=int, default=200)
    options = parser.parse_args()
    if options.command == "pack":
        pack(options.dataset, options.root, options.to)
        return
    dataset, val = read(options.data, "val")
    _, data = read(options.data, "train")
    for job in options.jobs:
        train(job, dataset, data, val, options)


if __name__ == "__main__":
    main()
