"""A first look at SICL on ImageNet images: TENT on a ResNet-50, a few batches, softmax beside SICL.

python benchmarks/imagenet_look.py --model imagenet-resnet50:FILE --images FOLDER
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

import sicl
from sicl.corruptions import corrupt
from sicl.data import load_dataset
from sicl.metrics import auroc, expected_calibration_error


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", required=True, help="what sicl.load_model takes")
    parser.add_argument("--images", required=True, help="a folder of class folders")
    parser.add_argument("--corruption", default="gaussian_noise")
    parser.add_argument("--severity", type=int, default=3)
    parser.add_argument("--n", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=32)
    options = parser.parse_args()
    data = load_dataset(f"folder:{options.images}")
    chosen = np.random.default_rng(0).permutation(len(data))[: options.n]
    pixels = torch.from_numpy(np.ascontiguousarray(data.images[chosen]))
    pixels = corrupt(pixels, options.corruption, severity=options.severity, seed=0)
    images, labels = pixels.permute(0, 3, 1, 2).float() / 255, torch.from_numpy(data.labels[chosen])
    method = sicl.Tent(lr=2.5e-4, optimizer="sgd", predict="after")
    calibrators = {"softmax": sicl.Softmax(), "sicl": sicl.SICL()}
    panel = sicl.Panel(calibrators, method.attach(sicl.load_model(options.model)))
    outs = [panel(part) for part in images.split(options.batch_size)]
    for name in calibrators:
        confidence = torch.cat([out[name].confidence for out in outs])
        right = torch.cat([out[name].labels for out in outs]) == labels
        scores = expected_calibration_error(confidence, right), auroc(confidence, right)
        means = float(right.float().mean()), float(confidence.mean())
        words = ("accuracy", "mean confidence", "ECE", "AUROC")
        print(
            name,
            *(f"{word} {100 * value:.1f}" for word, value in zip(words, (*means, *scores))),
            f"n {len(right)}",
        )


if __name__ == "__main__":
    main()
