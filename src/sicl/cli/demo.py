"""`sicl demo`: two minutes, no downloads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder for report.html and results.json.")
    ] = Path("sicl-demo"),
    method: Annotated[
        str, typer.Option(help="The adaptation method: tent, eata, sar, rotta, sotta, ...")
    ] = "tent",
    corruptions: Annotated[
        str, typer.Option(help="Corruptions to stream, separated by commas.")
    ] = "gaussian_noise,defocus_blur,contrast,jpeg_compression",
    calibrators: Annotated[
        str, typer.Option(help="Calibrators to compare, separated by commas.")
    ] = "softmax,temperature_scaling,mc_dropout,transcal,pseudocal,sicl",
    images: Annotated[
        int, typer.Option(min=1, max=1500, help="Images a corruption; 1,500 are embedded.")
    ] = 640,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
) -> None:
    """Watch an adapting classifier grow overconfident, and SICL put it right.

    Streams real CIFAR-10 test images, corrupted on the fly, through TENT on a small ResNet-18; both come with
    the package. Prints accuracy, ECE (calibration error, lower is better), Brier score (lower) and AUROC of
    correctness (higher) for every calibrator, and writes a report to look at.
    """
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from sicl.bench.run.demo import demo_plan, run_demo, write_demo
    from sicl.bench.run.device import choose_device

    console = Console(highlight=False)
    plan = demo_plan(
        method=method, corruptions=_names(corruptions), calibrators=_names(calibrators), n=images
    )
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(),
        TextColumn("{task.fields[seen]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as bar:
        tasks = {
            str(c.identity["corruption"]): bar.add_task(str(c.identity["corruption"]), seen="")
            for c in plan.cells
        }

        def on_batch(name: str, progress: object) -> None:
            done, total, accuracy = (getattr(progress, key) for key in ("batches", "total", "accuracy"))
            seen = "" if accuracy is None else f"accuracy {100 * accuracy:.0f} %"
            bar.update(tasks[name], completed=done, total=total, seen=seen)

        records = run_demo(plan, device=choose_device(device), on_batch=on_batch)
    page, results = write_demo(records, out)
    console.print(_table(records))
    console.print(f"Mean over {len(records)} corruptions of {records[0].n} images each, severity 5, seed 0.")
    console.print(f"Report: {page}\nNumbers: {results}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _table(records: object) -> Table:
    from rich.table import Table

    from sicl.bench.run.demo import summary
    from sicl.bench.tables.names import calibrator_name

    rows = summary(records)  # type: ignore[arg-type]
    table = Table(title="How far can the confidence be trusted?", title_justify="left")
    table.add_column("confidence from")
    for head in ("accuracy %", "ECE %", "Brier %", "AUROC %"):
        table.add_column(head, justify="right")
    keys = {"accuracy": max, "ECE": min, "Brier": min, "AUROC": max}
    best = {key: choose(row[key] for row in rows.values()) for key, choose in keys.items()}
    for name, row in rows.items():
        marks = [
            f"[bold green]{row[k]:.1f}[/]" if k != "accuracy" and row[k] == best[k] else f"{row[k]:.1f}"
            for k in keys
        ]
        table.add_row(calibrator_name(name), *marks)
    return table
