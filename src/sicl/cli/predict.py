"""`sicl predict`: a model on a folder of pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

if TYPE_CHECKING:
    from sicl.predict import FolderJob

HELP = {
    "model": "timm:NAME, torchvision:NAME, hf:NAME, a checkpoint file, or demo.",
    "images": "The folder of pictures, any sizes; folders below count too.",
    "out": "The folder for predictions.csv and index.html; the same folder goes on where a run stopped.",
    "method": "The adaptation method: source (none), tent, eata, sar, rotta, sotta, ...",
    "calibrator": "Where the confidence comes from: sicl, pseudocal, softmax, ...",
    "risk": "The error rate allowed among the accepted pictures.",
    "delta": "How often the accepted may err more often than at --risk; 1: often, but not in the mean over folders.",
    "labels": "A CSV file with the columns file and label; class folders are recognised without one.",
    "classes": "A text file with a class name a line, where the model does not know its own.",
    "source": "A folder of pictures of the kind the model knows (not trained on): tells a strange domain.",
    "arch": "The architecture of a checkpoint that does not say it.",
    "size": "Pixels a side, where the model has no preprocessing of its own.",
    "batch": "Pictures a batch.",
    "order": "shuffled (folders sorted by class harm adaptation), or name: as they came.",
    "device": "cpu, cuda, or auto.",
}

OptionalPath = Optional[Path]  # noqa: UP045


def predict(
    model: Annotated[str, typer.Option(help=HELP["model"])],
    images: Annotated[Path, typer.Option(metavar="DIR", help=HELP["images"])],
    out: Annotated[Path, typer.Option("--out", "-o", help=HELP["out"])] = Path("sicl-predict"),
    method: Annotated[str, typer.Option(help=HELP["method"])] = "source",
    calibrator: Annotated[str, typer.Option(help=HELP["calibrator"])] = "sicl",
    risk: Annotated[float, typer.Option(help=HELP["risk"])] = 0.05,
    delta: Annotated[float, typer.Option(help=HELP["delta"])] = 0.1,
    labels: Annotated[OptionalPath, typer.Option(help=HELP["labels"])] = None,
    classes: Annotated[OptionalPath, typer.Option(help=HELP["classes"])] = None,
    source: Annotated[OptionalPath, typer.Option(help=HELP["source"])] = None,
    arch: Annotated[Optional[str], typer.Option(help=HELP["arch"])] = None,  # noqa: UP045
    size: Annotated[Optional[int], typer.Option(help=HELP["size"])] = None,  # noqa: UP045
    batch: Annotated[int, typer.Option(help=HELP["batch"])] = 64,
    order: Annotated[str, typer.Option(help=HELP["order"])] = "shuffled",
    device: Annotated[str, typer.Option(help=HELP["device"])] = "auto",
) -> None:
    """Predict every picture of a folder, and say how far to trust each: no labels needed.

    Writes predictions.csv (label, confidence, accepted or not) and one page with the estimated accuracy, the
    pictures to look at first, and warnings. With labels it adds how well all that held.
    """
    options = locals()
    from sicl.bench.run.machine import choose_device
    from sicl.predict import FolderJob

    chosen = {"device": choose_device(device), "delta": None if delta == 1 else delta}
    _run(FolderJob(**{**options, **chosen}))


def _run(job: FolderJob) -> None:
    """Predict under a progress bar, write, and say what came out."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from sicl.predict import predict_page, run_job
    from sicl.predict.job import write_outcome
    from sicl.predict.page import warnings_of

    console = Console(highlight=False)
    columns = (TextColumn("pictures"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("pictures", total=None)
        outcome = run_job(job, lambda done, total: bar.update(task, completed=done, total=total))
    page = predict_page(outcome, job.images, f"{job.called} on {job.images.resolve().name}")
    table, html = write_outcome(outcome, job, page)
    if outcome.read:
        accuracy, low, high = (100 * value for value in outcome.estimate)
        console.print(f"Estimated accuracy: {accuracy:.1f} % (between {low:.0f} and {high:.0f} %)")
        taken, n = len(outcome.accepted), len(outcome.read)
        console.print(f"Accepted at {outcome.promise}: {taken} of {n} ({100 * taken / n:.0f} %)")
    if outcome.accuracy is not None:
        measured, n = 100 * outcome.accuracy, len(outcome.known)
        console.print(f"Measured accuracy: {measured:.1f} % on {n} labelled pictures")
    for note in warnings_of(outcome):
        console.print(f"[yellow]![/] {note}")
    console.print(f"Table: {table}\nPage: {html}", soft_wrap=True)
