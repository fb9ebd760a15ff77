"""`sicl results`: look at records that are there, and pack them into one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sicl.cli.bench import PlanName

app = typer.Typer(no_args_is_help=True, help="Look at records that are there, and pack them into one file.")

_WHERE = "A run's folder, or a packed file of its records (*.jsonl.xz)."


@app.command()
def show(
    where: Annotated[list[Path], typer.Argument(metavar="DIR...", help=_WHERE)],
    plan: PlanName = None,
    severities: Annotated[bool, typer.Option("--severities", help="A row for each severity.")] = False,
) -> None:
    """Print a Markdown table: for each data set and method the ECE and AUROC of every calibrator, in %.

    A mean says over how many cells it is; what a cell does not have is in none. Below it stands in how many cells each
    calibrator is no worse than the softmax, and how many cells of the plan were not run.
    """
    from sicl.bench.run.results import load_results
    from sicl.bench.tables.summary import overview

    found = (load_results(path, plan) for path in where)
    tables = (overview(some.records, by_severity=severities, planned=some.planned) for some in found)
    typer.echo("\n\n".join(tables))


@app.command()
def pack(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the records (*.json).")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write: NAME.jsonl.xz.")],
) -> None:
    """Write a folder's plan and records into one compressed file, which all commands read as they read the folder.

    The same records give the same bytes. The folder stays as it is.
    """
    from sicl.bench.run.results import load_records, pack_results

    path = pack_results(folder, file)
    typer.echo(f"{path}: {len(load_records(path))} records, {path.stat().st_size:,} bytes.")
