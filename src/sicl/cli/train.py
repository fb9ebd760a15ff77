"""`sicl train`: make a source model from a data set's training images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

if TYPE_CHECKING:
    from rich.progress import Progress

    from sicl.data import Dataset
    from sicl.train import EpochReport, TrainSpec
    from sicl.train.loop import Labelled

_HELP = {
    "out": "The .safetensors file to write; OUT.resume is kept next to it while the run goes on.",
    "dataset": "cifar10 or cifar100.",
    "root": "The folder with the data; default: SICL_DATA or ~/.cache/sicl.",
    "arch": "resnet18, resnet18_gn (group norm), resnet50, resnet101 or vit_small.",
    "width": "Channels of the first stage (16 makes a small ResNet), or of one ViT head.",
    "recipe": "paper (200 epochs, float32) or fast (bfloat16, large batches, fewer epochs).",
    "half": "Store float16.",
    "compile_model": "Run the network through torch.compile.",
    "option": "Any other field of TrainSpec as NAME=VALUE, for example --set lr=0.05; may be repeated.",
}


def train(
    out: Annotated[Path, typer.Argument(help=_HELP["out"])],
    dataset: Annotated[str, typer.Option(help=_HELP["dataset"])] = "cifar10",
    root: Annotated[Optional[Path], typer.Option(help=_HELP["root"])] = None,  # noqa: UP045
    arch: Annotated[str, typer.Option(help=_HELP["arch"])] = "resnet18",
    width: Annotated[int, typer.Option(help=_HELP["width"])] = 64,
    recipe: Annotated[str, typer.Option(help=_HELP["recipe"])] = "paper",
    epochs: Annotated[Optional[int], typer.Option(help="Epochs; default: the recipe's.")] = None,  # noqa: UP045
    seed: Annotated[int, typer.Option(help="Seed of weights, order and augmentation.")] = 0,
    device: Annotated[str, typer.Option(help="cpu, cuda, ... or auto.")] = "auto",
    half: Annotated[bool, typer.Option(help=_HELP["half"])] = False,
    compile_model: Annotated[bool, typer.Option("--compile", help=_HELP["compile_model"])] = False,
    option: Annotated[Optional[list[str]], typer.Option("--set", help=_HELP["option"])] = None,  # noqa: UP045
) -> None:
    """Train a source model on the training images with i % 10 != 9; the others validate it.

    A killed run goes on when the same command is given again.
    """
    import torch

    from sicl.data import load_dataset
    from sicl.train import train_to_file

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    parts = [load_dataset(dataset, root=root, split=split) for split in ("train", "val")]
    spec = _spec(recipe, arch, parts[0], dataset, width=width, seed=seed, epochs=epochs, option=option or [])
    how: Any = {"dataset": dataset, "device": device, "half": half, "compile_model": compile_model}
    with _progress() as bar:
        task = bar.add_task("training", total=None)

        def on_step(step: int, n_steps: int) -> None:
            bar.update(task, completed=step, total=n_steps)

        def on_epoch(report: EpochReport) -> None:
            accuracy = "" if report.accuracy is None else f"  val accuracy {100 * report.accuracy:.2f} %"
            told = f"epoch {report.epoch}/{spec.epochs}  loss {report.loss:.4f}{accuracy}  {report.seconds:.1f} s"
            bar.console.print(told, highlight=False, markup=False, emoji=False)

        images, held_out = map(_arrays, parts)
        result = train_to_file(spec, images, held_out, out, on_step=on_step, on_epoch=on_epoch, **how)
    typer.echo(f"{out}: validation accuracy {100 * (result.history[-1].accuracy or 0.0):.2f} %")


def _spec(
    recipe_name: str, arch: str, data: Dataset, dataset: str, *, option: list[str], **fields: Any
) -> TrainSpec:
    from dataclasses import replace

    from sicl.train.spec import NORMALISATION, parse_options, recipe

    chosen = {name: value for name, value in fields.items() if value is not None}
    if dataset in NORMALISATION:
        chosen["mean"], chosen["std"] = NORMALISATION[dataset]
    spec = replace(recipe(recipe_name, arch), n_classes=data.n_classes, **chosen)
    return replace(spec, **parse_options(option))


def _arrays(data: Dataset) -> Labelled:
    import numpy as np

    return data.images[np.arange(len(data), dtype=np.int64)], data.labels


def _progress() -> Progress:
    """Return a progress bar over an epoch's steps."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    name = TextColumn("{task.description}", markup=False)
    return Progress(name, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
