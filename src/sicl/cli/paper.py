"""`sicl paper`: the paper's tables and figures, one command each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from sicl.cli import bench

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
    "results": "The folder that holds the runs, a folder or a packed file each.",
    "write": "A page whose generated parts (between begin and end marks) and figures are made anew.",
}

Listed = Optional[str]  # noqa: UP045


@app.command("list")
def list_presets() -> None:
    """List the tables and figures."""
    from rich.table import Table
    from rich.text import Text

    from sicl.bench.paper.presets import ALIASES, PRESETS
    from sicl.bench.run.live import make_console

    table = Table(box=None, show_header=False)
    for name, preset in PRESETS.items():
        also = ", ".join(alias for alias, parts in ALIASES.items() if parts == (name,))
        table.add_row(Text(name, "bold"), also, preset.title)
    for alias, parts in ALIASES.items():
        if len(parts) > 1:
            table.add_row(Text(alias, "bold"), "", "all of " + " and ".join(parts))
    make_console().print(table)


@app.command()
def run(
    name: Annotated[str, typer.Argument(help=_HELP["name"])],
    out: bench.Out = None,
    data: bench.Data = None,
    weights: Annotated[Optional[Path], typer.Option(help=_HELP["weights"])] = None,  # noqa: UP045
    quick: Annotated[bool, typer.Option("--quick", help=_HELP["quick"])] = False,
    datasets: Annotated[Listed, typer.Option(help=_HELP["datasets"])] = None,
    models: Annotated[Listed, typer.Option(help=_HELP["models"])] = None,
    methods: Annotated[Listed, typer.Option(help=_HELP["methods"])] = None,
    corruptions: Annotated[Listed, typer.Option(help=_HELP["corruptions"])] = None,
    seeds: Annotated[Listed, typer.Option(help=_HELP["seeds"])] = None,
    n: Annotated[Optional[int], typer.Option(help=_HELP["n"])] = None,  # noqa: UP045
    batch_size: Annotated[int, typer.Option(help=_HELP["batch_size"])] = 64,
    device: bench.Device = "auto",
    executor: bench.ExecutorName = None,
    workers: bench.Workers = None,
    address: bench.Address = None,
    gpus: bench.Gpus = None,
    cpus: bench.Cpus = 1.0,
    retries: bench.Retries = 2,
    cell_timeout: bench.CellTimeout = None,
    threads: bench.Threads = None,
    predictions: bench.Predictions = False,
    cache: bench.Cache = None,
    retry_failed: bench.RetryFailed = False,
    dry_run: bench.DryRun = False,
) -> None:
    """Run a table or figure, and put our numbers beside the paper's."""
    options = locals()
    lists = {key: bench.words(options[key]) for key in ("datasets", "models", "methods", "corruptions")}
    size = {"seeds": _numbers(seeds), "n": n, "batch_size": batch_size}
    _run(name, {"weights": weights, "quick": quick, **lists, **size}, options)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help=_HELP["name"])],
    folder: Annotated[Path, typer.Argument(help="A run's folder, or a packed file of its records.")],
    plan: bench.PlanName = None,
) -> None:
    """Put the records of an earlier run beside the paper's numbers; runs nothing, needs no data."""
    from sicl.bench.paper.presets import presets_of
    from sicl.bench.paper.show import show_preset
    from sicl.bench.run.results import load_results

    for part, place in _places(presets_of(name), folder):
        found = load_results(place, plan)
        # What is packed stays as it is; its tables and drawings go beside this command.
        beside = place if place.is_dir() else Path(place.name.partition(".")[0])
        _report(part, found.records, beside, show_preset(part, found.records, beside).parts)


@app.command()
def claims(
    results: Annotated[Path, typer.Argument(help=_HELP["results"])] = Path("results"),
    write: Annotated[Optional[Path], typer.Option(help=_HELP["write"])] = None,  # noqa: UP045
) -> None:
    """Answer every claim of the paper from records: what we measured, and whether it agrees; runs nothing."""
    from sicl.bench.paper.answers import claims_table, write_page
    from sicl.bench.paper.evidence import Evidence

    if write is None:
        typer.echo(claims_table(Evidence(results)))
        return
    for path in write_page(write, results):
        typer.echo(f"Wrote {path}.")


def _run(name: str, choice: dict[str, Any], options: Mapping[str, Any]) -> None:
    from sicl.bench.paper.presets import PRESETS, Choice, presets_of
    from sicl.bench.run.live import run_live, show_plan

    parts = presets_of(name)
    plans = {part: PRESETS[part].plan(part, Choice(**choice)) for part in parts}
    if options["dry_run"]:
        for plan in plans.values():
            show_plan(plan)
        return
    from sicl.bench.paper.show import show_preset

    failed = 0
    whole = options["out"] or Path("runs") / (plans[parts[0]].name if len(parts) == 1 else name)
    for part, folder in _places(parts, whole):
        keep = options["predictions"] or PRESETS[part].predictions
        result = run_live(plans[part], folder, **bench.launch({**options, "predictions": keep}))
        shown = show_preset(part, result.records, folder)
        _report(part, result.records, folder, shown.parts, len(plans[part]))
        failed += len(result.failed)
    raise typer.Exit(1 if failed else 0)


def _places(parts: Sequence[str], folder: Path) -> list[tuple[str, Path]]:
    """Return each part of a figure with its folder: one of its own where there are several."""
    return [(part, folder / part if len(parts) > 1 else folder) for part in parts]


def _report(
    name: str, records: Sequence[Any], folder: Path, parts: Sequence[str], planned: int | None = None
) -> None:
    """Write the run's report again, now with its figure and its tables as the paper has them."""
    from sicl.bench.report import write_report

    write_report(records, folder / "report.html", title=name, planned=planned, parts=parts)


def _numbers(text: str | None) -> list[int]:
    from sicl.errors import OptionError

    try:
        return [int(word) for word in bench.words(text)]
    except ValueError as error:
        raise OptionError(f"`seeds` must be whole numbers with commas between, got {text!r}.") from error
