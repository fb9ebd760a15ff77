"""How often SAR recovers on an easy and on a hard stream: the embedded model, ten batches of 64.

python benchmarks/resets.py
"""

from __future__ import annotations

import torch

from sicl.adapt import Sar
from sicl.corruptions import corrupt
from sicl.data import load_dataset
from sicl.models.zoo import load_model


def main() -> None:
    """Print the resets of each stream."""
    model, dataset = load_model("demo"), load_dataset("demo")
    for name in ("brightness", "gaussian_noise"):
        adapter = Sar().attach(model)
        images = torch.from_numpy(corrupt(dataset.images[:640], name, severity=5, seed=0))
        for part in images.split(64):
            adapter(part.permute(0, 3, 1, 2).float() / 255)
        print(f"{name}: {adapter.counters['resets']} resets in {adapter.counters['batches']} batches")


if __name__ == "__main__":
    main()
