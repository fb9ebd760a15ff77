"""`sicl demo`: two minutes, no downloads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from sicl.cli.bench import words


def demo(
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The folder for the records, report.html and results.json.")
    ] = Path("sicl-demo"),
    method: Annotated[
        str, typer.Option(help="The adaptation method: tent, eata, sar, rotta, sotta, ...")
    ] = "tent",
    corruptions: Annotated[
        str, typer.Option(help="Corruptions to stream, separated by commas; default: one of each category.")
    ] = "",
    calibrators: Annotated[
        str, typer.Option(help="Calibrators to compare, separated by commas; default: all.")
    ] = "",
    images: Annotated[
        int, typer.Option(min=1, max=1500, help="Images a corruption; 1,500 are embedded.")
    ] = 640,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
) -> None:
    """Watch an adapting classifier grow overconfident, and SICL put it right.

    Streams real CIFAR-10 test images, corrupted on the fly, through TENT on a small ResNet-18; both come with
    the package. Prints accuracy, ECE (calibration error, lower is better), Brier score (lower) and AUROC of
    correctness (higher) for every calibrator, and writes a report to look at. It is a plan like any other: the same
    command shows what is there already.
    """
    from sicl.bench.executors import Settings, make_executor
    from sicl.bench.run.demo import demo_plan, show_demo, title, write_summary
    from sicl.bench.run.live import run_live

    wanted = {"corruptions": words(corruptions), "calibrators": words(calibrators)}
    plan = demo_plan(method=method, n=images, **wanted)
    how: dict[str, Any] = {"executor": make_executor(), "settings": Settings(device=device)}
    result = run_live(plan, out, show=show_demo, title=title(method), **how)
    typer.echo(f"Numbers: {write_summary(result.records, out)}")
    raise typer.Exit(1 if result.failed else 0)
