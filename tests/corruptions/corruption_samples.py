"""Sample images for the corruption tests: 32 CIFAR-10 test images and what the authors' generator made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

DATA = Path(__file__).parent / "data"
SIDE = 32


def read_sample(name: str) -> npt.NDArray[np.uint8]:
    """Return 32 x 32 x 32 x 3: "clean", or a corruption at severity 5."""
    pixels = np.asarray(Image.open(DATA / f"{name}.png").convert("RGB"))
    rows, columns = pixels.shape[0] // SIDE, pixels.shape[1] // SIDE
    return pixels.reshape(rows, SIDE, columns, SIDE, 3).swapaxes(1, 2).reshape(-1, SIDE, SIDE, 3)


def random_images(n: int, height: int, width: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Return smooth-ish random images: coarse blocks plus noise."""
    rng = np.random.default_rng(seed)
    blocks = rng.integers(40, 200, (n, height // 4 + 1, width // 4 + 1, 3))
    coarse = blocks.repeat(4, axis=1).repeat(4, axis=2)[:, :height, :width]
    return (coarse + rng.integers(-30, 31, coarse.shape)).clip(0, 255).astype(np.uint8)
