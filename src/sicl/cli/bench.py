"""`sicl bench`: run a plan, on one machine or many."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

HELP = {
    "plan": "The plan, a TOML file; see docs/benchmark.md.",
    "out": "The folder for the records; the same folder goes on where a run stopped. Default: runs/NAME.",
    "data": "The folder with the data; default: SICL_DATA or ~/.cache/sicl.",
    "device": "cpu, cuda (workers share the GPUs), cuda:1, mps, or auto: cuda where there is a GPU.",
    "executor": "inline, processes or ray; default: processes if there are several workers.",
    "workers": "Cells that run at the same time.",
    "address": "The Ray cluster: auto, HOST:6379 or ray://HOST:10001; default: one on this machine.",
    "gpus": "The share of a GPU that a cell takes on a Ray cluster, for example 0.25; default: 1 on a GPU device.",
    "cpus": "CPUs a cell takes on a Ray cluster.",
    "retries": "How often a cell is tried again after its worker was lost or took too long.",
    "cell_timeout": "Seconds a cell may take; then its worker is ended and the cell tried again elsewhere.",
    "threads": "CPU threads a worker; default: OMP_NUM_THREADS, or the cores divided among the workers.",
    "predictions": "Also keep every sample's prediction (npz), so that any metric can be computed later.",
    "cache": "A folder that keeps corrupted images for later runs.",
    "retry_failed": "Run the cells that failed before again.",
    "dry_run": "Say which modules the plan imports, check it, show its cells and their cost, and run nothing.",
    "plan_name": "The plan whose records are meant, where several wrote into the folder.",
}

Out = Annotated[Optional[Path], typer.Option(help=HELP["out"])]  # noqa: UP045
Data = Annotated[Optional[Path], typer.Option(help=HELP["data"])]  # noqa: UP045
Device = Annotated[str, typer.Option(help=HELP["device"])]
ExecutorName = Annotated[Optional[str], typer.Option(help=HELP["executor"])]  # noqa: UP045
Workers = Annotated[Optional[int], typer.Option(help=HELP["workers"])]  # noqa: UP045
Address = Annotated[Optional[str], typer.Option(help=HELP["address"])]  # noqa: UP045
Gpus = Annotated[Optional[float], typer.Option(help=HELP["gpus"])]  # noqa: UP045
Cpus = Annotated[float, typer.Option(help=HELP["cpus"])]
Retries = Annotated[int, typer.Option(help=HELP["retries"])]
CellTimeout = Annotated[Optional[float], typer.Option(help=HELP["cell_timeout"])]  # noqa: UP045
PlanName = Annotated[Optional[str], typer.Option("--plan", help=HELP["plan_name"])]  # noqa: UP045
Threads = Annotated[Optional[int], typer.Option(help=HELP["threads"])]  # noqa: UP045
Predictions = Annotated[bool, typer.Option("--predictions", help=HELP["predictions"])]
Cache = Annotated[Optional[Path], typer.Option(help=HELP["cache"])]  # noqa: UP045
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help=HELP["retry_failed"])]
DryRun = Annotated[bool, typer.Option("--dry-run", help=HELP["dry_run"])]


def words(text: str | None) -> list[str]:
    """Return what an option lists with commas between."""
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def launch(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a plan is to be run, as `run_live` takes it, from a command's options by name."""
    from sicl.bench.executors import Settings, make_executor
    from sicl.bench.executors.ray import RayCluster

    values, how = ({f.name: options[f.name] for f in fields(kind)} for kind in (Settings, RayCluster))
    places = {name: str(path.absolute()) for name, path in values.items() if isinstance(path, Path)}
    return {
        "executor": make_executor(options["executor"], **how),
        "settings": Settings(**{**values, **places}),
        "retry_failed": options["retry_failed"],
    }


def bench(
    plan: Annotated[Path, typer.Argument(help=HELP["plan"])],
    out: Out = None,
    data: Data = None,
    device: Device = "auto",
    executor: ExecutorName = None,
    workers: Workers = None,
    address: Address = None,
    gpus: Gpus = None,
    cpus: Cpus = 1.0,
    retries: Retries = 2,
    cell_timeout: CellTimeout = None,
    threads: Threads = None,
    predictions: Predictions = False,
    cache: Cache = None,
    retry_failed: RetryFailed = False,
    dry_run: DryRun = False,
) -> None:
    """Run every cell of a plan once, and write a record for each.

    A run can be stopped or killed at any moment; the same command goes on where it stopped.
    Exit status: 0 all cells done, 1 some failed, 2 wrong plan or option, 3 the machine's or folder's fault,
    130 stopped by a signal.
    """
    options = locals()
    from sicl.bench.plan.plan import load_plan, read_table
    from sicl.bench.run.live import find_own_modules, run_live, show_modules, show_plan

    find_own_modules(plan.parent)
    if dry_run:
        show_modules(read_table(plan))
    loaded = load_plan(plan)
    if dry_run:
        show_plan(loaded)
        return
    result = run_live(loaded, out or Path("runs") / loaded.name, **launch(options))
    raise typer.Exit(1 if result.failed else 0)
