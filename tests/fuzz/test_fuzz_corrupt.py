"""`corrupt` with hostile images and options: images of the same kind, or a sentence."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fuzzing import Fuzzer, damaged, hostile
from PIL import Image
from torch import Tensor

from sicl.corruptions import CORRUPTIONS, VALIDATION_CORRUPTIONS, corrupt

CASES = 2500
NAMES = (*CORRUPTIONS, *VALIDATION_CORRUPTIONS)


def _images(rng: random.Random) -> Any:
    shape = (rng.choice([0, 1, 2]), rng.choice([8, 9, 32]), rng.choice([8, 16, 33]), 3)
    if rng.random() < 0.3:
        shape = tuple(rng.choice([0, 1, 3, 8]) for _ in range(rng.randrange(6)))
    made = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    if rng.random() < 0.6:
        return made
    changes = [
        lambda t: t.numpy(),
        lambda t: t.float(),
        lambda t: t.to("meta"),
        lambda t: t.to_sparse() if t.ndim else t,
        lambda t: t.transpose(0, -1) if t.ndim else t,
        lambda t: t.flip(1).numpy()[:, ::-1] if t.ndim > 1 else t,
        lambda t: t.numpy().astype(">u2"),
        lambda t: np.ma.masked_array(t.numpy()),
        lambda t: t.tolist(),
        lambda t: hostile(rng),
    ]
    return rng.choice(changes)(made)


def _options(rng: random.Random, folder: Path) -> dict[str, Any]:
    options: dict[str, Any] = {"severity": rng.choice([1, 3, 5])}
    for name in ("severity", "seed", "first_index", "indices", "constants", "frost_folder"):
        if rng.random() < 0.12:
            options[name] = hostile(rng)
    if rng.random() < 0.05:
        (folder / "frost.png").write_bytes(damaged((folder / "whole.bin").read_bytes(), rng))
        options["frost_folder"] = folder
    if rng.random() < 0.1:
        options["indices"] = rng.choice(
            [torch.arange(2), np.array([0.5]), [1, [2]], np.array([2**63], np.uint64)]
        )
    return options


@pytest.mark.slow
def test_hostile_images_and_options_are_refused_in_a_sentence(tmp_path: Path) -> None:
    """What comes back has the shape, type and kind of what was given."""
    fuzzer, rng = Fuzzer(), random.Random(16)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (300, 300, 3), np.uint8)).save(
        tmp_path / "w.png"
    )
    (tmp_path / "w.png").rename(tmp_path / "whole.bin")
    for number in range(CASES):
        images, name = _images(rng), rng.choice(NAMES) if rng.random() < 0.9 else hostile(rng)
        options = _options(rng, tmp_path)
        case = (
            f"{number} {type(images).__name__} {name!a:.30} {list(options)}"
            if isinstance(name, str)
            else f"{number}"
        )
        made = fuzzer.run(case, lambda i=images, n=name, o=options: corrupt(i, n, **o))
        if made is None:
            continue
        same = isinstance(made, Tensor) == isinstance(images, Tensor) and made.dtype == images.dtype
        if not same or made.shape != images.shape:
            fuzzer.fault(case, f"{type(made)} {made.dtype} {made.shape}")
    fuzzer.finish(CASES)
