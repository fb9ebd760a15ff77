"""Measure the clean accuracy of a model on a data set's test images.

python benchmarks/accuracy.py demo --dataset cifar10 --root DATA
python benchmarks/accuracy.py imagenet-resnet50:ResNet50.tgz --dataset folder:VAL
"""

from __future__ import annotations

import argparse
import json
import platform
import time

import numpy as np
import torch

from sicl.data import load_dataset
from sicl.models.zoo import load_model


def main() -> None:
    """Print one JSON line: accuracy in percent, n, seconds, hardware and versions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--dataset", default="cifar10")
    parser.add_argument("--root")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    model = load_model(options.model, device=options.device)
    data = load_dataset(options.dataset, root=options.root)
    started, right = time.perf_counter(), 0
    with torch.inference_mode():
        for start in range(0, len(data), options.batch):
            index = np.arange(start, min(start + options.batch, len(data)))
            images = torch.from_numpy(data.images[index]).to(options.device).permute(0, 3, 1, 2).float() / 255
            right += int((model(images).argmax(1).cpu().numpy() == data.labels[index]).sum())
    record = {
        "model": options.model,
        "dataset": options.dataset,
        "accuracy": round(100 * right / len(data), 2),
        "n": len(data),
        "seconds": round(time.perf_counter() - started, 1),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, {options.device}",
        "torch": torch.__version__,
    }
    print(json.dumps(record))


if __name__ == "__main__":
    main()
