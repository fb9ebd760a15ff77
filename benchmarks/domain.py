"""Does a change of domain raise an alarm, and a mild corruption none? On your own model and pictures.

    python benchmarks/domain.py --model FILE --known PHOTOS --strange PAINTINGS [--method tent] [--calibrator sicl]

`known` holds pictures of the domain the model was trained on, but not those it saw; half of them are the reference,
half the stream. The stream then turns to each of the fifteen corruptions at severity 1, and to the strange folder.
Prints after how many samples of each an alarm went.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sicl
from sicl.adapt import METHODS
from sicl.calibrate import CALIBRATORS
from sicl.corruptions import CORRUPTIONS, corrupt
from sicl.predict.pictures import find_pictures, preprocess_of, read_batch


def pixels_of(folder: Path, model: torch.nn.Module, n: int) -> np.ndarray:
    """Return up to n pictures of a folder in a random order, as the model takes them, uint8."""
    files = np.random.default_rng(0).permutation(find_pictures(folder))[:n]
    images, _, _ = read_batch([folder / file for file in files], preprocess_of(model))
    if images is None:
        raise SystemExit(f"{folder} holds no picture that can be read.")
    return (255 * images).round().byte().permute(0, 2, 3, 1).contiguous().numpy()


def as_images(pixels: np.ndarray, device: str) -> torch.Tensor:
    """Return N x 3 x H x W in [0, 1]."""
    return torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2).float() / 255


def delay(monitored: Any, first: np.ndarray, then: np.ndarray, options: argparse.Namespace) -> dict[str, Any]:
    """Play a stream that turns; return the sample of the second part at which the alarm had gone."""
    for pixels in np.array_split(first, max(1, len(first) // options.batch)):
        monitored(as_images(pixels, options.device))
    begun, early = monitored.seen, monitored.alarm
    for pixels in np.array_split(then, max(1, len(then) // options.batch)):
        out = monitored(as_images(pixels, options.device))
        if out.alarm and not early:
            return {"after": monitored.seen - begun, "alarm": out.alarm}
    return {"after": None, "alarm": f"before the change: {early}" if early else ""}


def main() -> None:
    """Run every change once and print one JSON line each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--known", type=Path, required=True)
    parser.add_argument("--strange", type=Path, required=True)
    parser.add_argument("--method", default="source", choices=METHODS)
    parser.add_argument("--calibrator", default="sicl", choices=CALIBRATORS)
    parser.add_argument("--reference", default="source", choices=("source", "first-window"))
    parser.add_argument("--n", type=int, default=512, help="pictures of each folder, at most")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", nargs="+", help="some changes, as 'fog 1' or the strange folder's name")
    options = parser.parse_args()
    model = sicl.load_model(options.model, device=options.device)
    known = pixels_of(options.known, model, options.n)
    reference, stream = known[: len(known) // 2], known[len(known) // 2 :]
    for name in options.only or [*(f"{name} 1" for name in CORRUPTIONS), options.strange.name]:
        if name == options.strange.name:
            then = pixels_of(options.strange, model, options.n)
        else:
            then = corrupt(stream, name.split()[0], severity=1)
        adapter = METHODS[options.method]().attach(model)
        trusted = CALIBRATORS[options.calibrator]().attach(adapter)
        images = as_images(reference, options.device)
        source = sicl.SourceData(images, torch.zeros(len(images), dtype=torch.long, device=options.device))
        known_first = options.reference == "source"
        window = 256 if known_first else min(256, len(stream))
        monitored = sicl.Monitor(window=window).attach(trusted, source=source if known_first else None)
        print(
            json.dumps({"change": name, "n": len(then), **delay(monitored, stream, then, options)}),
            flush=True,
        )


if __name__ == "__main__":
    main()
