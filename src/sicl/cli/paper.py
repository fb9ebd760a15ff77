"""`sicl paper`: the paper's tables and figures, one command each."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from sicl.cli.bench import (
    Address,
    Cache,
    Cpus,
    Data,
    Device,
    DryRun,
    ExecutorName,
    Gpus,
    Launch,
    Out,
    Predictions,
    Retries,
    RetryFailed,
    Threads,
    Workers,
)

app = typer.Typer(help="Reproduce the paper's tables and figures.", no_args_is_help=True)

_HELP = {
    "name": "A table or figure; `sicl paper list` shows them.",
    "weights": "The folder with source models: DATASET-ARCH-seedN.safetensors or DATASET-ARCH.safetensors.",
    "quick": "The demonstration data and model, few corruptions, one method: minutes on a laptop.",
    "datasets": "Only these data sets, for example cifar10-c,imagenet-c:5k.",
    "models": "Only these networks: resnet18, resnet50, resnet101, vit, demo.",
    "methods": "Only these methods, for example tent,sar.",
    "corruptions": "Only these corruptions.",
    "seeds": "Only these seeds, for example 0,1.",
    "n": "Images of each corruption; default: all.",
    "batch_size": "Samples a batch.",
}

Listed = Optional[str]  # noqa: UP045


@app.command("list")
def list_presets() -> None:
    """List the tables and figures."""
    from rich.console import Console
    from rich.table import Table

    from sicl.bench.paper.presets import PRESETS

    table = Table(box=None, show_header=False)
    for name, preset in PRESETS.items():
        table.add_row(f"[bold]{name}[/bold]", preset.title)
    Console(highlight=False).print(table)


@app.command()
def run(
    name: Annotated[str, typer.Argument(help=_HELP["name"])],
    out: Out = None,
    data: Data = None,
    weights: Annotated[Optional[Path], typer.Option(help=_HELP["weights"])] = None,  # noqa: UP045
    quick: Annotated[bool, typer.Option("--quick", help=_HELP["quick"])] = False,
    datasets: Annotated[Listed, typer.Option(help=_HELP["datasets"])] = None,
    models: Annotated[Listed, typer.Option(help=_HELP["models"])] = None,
    methods: Annotated[Listed, typer.Option(help=_HELP["methods"])] = None,
    corruptions: Annotated[Listed, typer.Option(help=_HELP["corruptions"])] = None,
    seeds: Annotated[Listed, typer.Option(help=_HELP["seeds"])] = None,
    n: Annotated[Optional[int], typer.Option(help=_HELP["n"])] = None,  # noqa: UP045
    batch_size: Annotated[int, typer.Option(help=_HELP["batch_size"])] = 64,
    device: Device = "auto",
    executor: ExecutorName = None,
    workers: Workers = None,
    address: Address = None,
    gpus: Gpus = None,
    cpus: Cpus = 1.0,
    retries: Retries = 2,
    threads: Threads = None,
    predictions: Predictions = False,
    cache: Cache = None,
    retry_failed: RetryFailed = False,
    dry_run: DryRun = False,
) -> None:
    """Run a table or figure, and put our numbers beside the paper's."""
    where = (data, device, executor, workers, address, gpus, cpus, retries, threads, predictions, cache)
    narrow = {"datasets": datasets, "models": models, "methods": methods, "corruptions": corruptions}
    lists = {key: _split(text) for key, text in narrow.items()}
    size = {"seeds": _numbers(seeds), "n": n, "batch_size": batch_size}
    choice = {"weights": weights, "quick": quick, **lists, **size}
    _run(name, choice, out, Launch(*where, retry_failed), dry_run)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help=_HELP["name"])],
    folder: Annotated[Path, typer.Argument(help="The folder with the records of a run.")],
) -> None:
    """Put the records of an earlier run beside the paper's numbers; runs nothing, needs no data."""
    from sicl.bench.paper.presets import PRESETS
    from sicl.bench.paper.show import show_preset
    from sicl.bench.run.schema import load_records
    from sicl.errors import require_choice

    require_choice(PRESETS, name=name)
    show_preset(name, load_records(folder), folder)


def _run(name: str, options: dict[str, Any], out: Path | None, launch: Launch, dry_run: bool) -> None:
    from sicl.bench.paper.presets import PRESETS, Choice
    from sicl.bench.run.live import show_plan
    from sicl.errors import require_choice

    require_choice(PRESETS, name=name)
    preset = PRESETS[name]
    plan = preset.plan(name, Choice(**options))
    if dry_run:
        show_plan(plan)
        return
    from sicl.bench.paper.show import show_preset

    folder = out or Path("runs") / plan.name
    launch = replace(launch, predictions=launch.predictions or preset.predictions)
    result = launch.run(plan, folder)
    show_preset(name, result.records, folder)
    raise typer.Exit(1 if result.failed else 0)


def _split(text: str | None) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()] if text else []


def _numbers(text: str | None) -> list[int]:
    from sicl.errors import OptionError

    try:
        return [int(word) for word in _split(text)]
    except ValueError as error:
        raise OptionError(f"`seeds` must be whole numbers with commas between, got {text!r}.") from error
