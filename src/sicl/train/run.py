"""From a data set on disk to a checkpoint on disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sicl.errors import OptionError
from sicl.models.checkpoint import save_checkpoint
from sicl.train.loop import EpochReport, Labelled, TrainResult, fit
from sicl.train.spec import TrainSpec


def train_to_file(
    spec: TrainSpec,
    train: Labelled,
    val: Labelled,
    out: Path | str,
    *,
    dataset: str,
    device: torch.device | str = "cpu",
    half: bool = False,
    compile_model: bool = False,
    on_step: Callable[[int, int], None] | None = None,
    on_epoch: Callable[[EpochReport], None] | None = None,
) -> TrainResult:
    """Train, and write the weights with the whole configuration inside; goes on after a kill.

    Args:
        spec: the recipe.
        train: training images and labels.
        val: validation images and labels.
        out: the .safetensors file; `OUT.resume` next to it lives as long as the run does.
        dataset: the data set's name, for the file.
        device: where to train.
        half: store float16.
        compile_model: as for `fit`.
        on_step: as for `fit`.
        on_epoch: as for `fit`.

    Raises:
        OptionError: `out` exists already or does not end in .safetensors.
    """
    out = Path(out)
    if out.suffix != ".safetensors":
        raise OptionError(f"`out` must end in .safetensors, got {out.name!r}.")
    if out.exists():
        raise OptionError(
            f"`out` must be a new file, but {str(out)!r} exists; move it away or choose another."
        )
    resume = out.with_name(out.name + ".resume")
    told: dict[str, Any] = {"compile_model": compile_model, "on_step": on_step, "on_epoch": on_epoch}
    result = fit(spec, *train, val=val, device=device, resume=resume, **told)
    metadata = {**spec.model.to_metadata(), "dataset": dataset, "train": spec.to_json()}
    accuracy = result.history[-1].accuracy
    if accuracy is not None:
        metadata["val_accuracy"] = f"{accuracy:.4f}"
    save_checkpoint(out, result.model.state_dict(), metadata, dtype=torch.float16 if half else None)
    resume.unlink(missing_ok=True)
    return result
