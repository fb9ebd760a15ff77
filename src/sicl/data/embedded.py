"""The demonstration data inside the package: 1,900 CIFAR-10 test images."""

from __future__ import annotations

import json
from importlib.resources import files

import numpy as np

from sicl.data.cifar import content_checksum
from sicl.data.dataset import Dataset
from sicl.data.sheets import read_sheet
from sicl.errors import OptionError

N_TEST = 1500
"""The first 1,500 images are the test part, the other 400 stand in for source validation data."""


def load_demo(split: str = "test") -> Dataset:
    """Load the first 1,900 images of the CIFAR-10 test set: 1,500 to stream ("test"), 400 to fit on ("val").

    None of them was used to train the demonstration model.
    """
    if split not in ("test", "val"):
        raise OptionError(
            f"the demo data have the splits test and val, got {split!r}; load cifar10 to train."
        )
    folder = files("sicl.data") / "_embedded"
    content = json.loads((folder / "labels.json").read_text())
    labels = np.array(content["labels"], np.int64)
    with (folder / "cifar10-test-1900.webp").open("rb") as file:
        images = read_sheet(file, count=len(labels))
    indices = np.arange(len(labels), dtype=np.int64)
    chosen = indices[:N_TEST] if split == "test" else indices[N_TEST:]
    provenance = {
        "dataset": "demo",
        "split": split,
        "layout": "embedded",
        "count": len(chosen),
        "checksum": content_checksum(images[chosen]),
    }
    return Dataset("demo", images[chosen], labels[chosen], tuple(content["classes"]), chosen, provenance)
