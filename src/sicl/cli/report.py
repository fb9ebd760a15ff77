"""`sicl report`: make a report from a folder of records."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from sicl.cli.bench import PlanName

_DIR = "The folder of the records (*.json), or a packed file of them (*.jsonl.xz)."


class Format(str, Enum):
    """What to write."""

    html = "html"
    md = "md"
    csv = "csv"
    latex = "latex"
    all = "all"


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help=_DIR)],
    format: Annotated[Format, typer.Option("--format", "-f", help="What to write.")] = Format.html,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder to write into; DIR unless given.")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="The heading; else DIR's name.")] = None,
    plan: PlanName = None,
) -> None:
    """Make a report: an HTML page that needs no network, or Markdown, CSV and LaTeX tables."""
    from sicl.bench.report import FORMATS, write_reports
    from sicl.bench.run.results import load_results

    found = load_results(folder, plan)
    records, planned = found.records, found.planned
    formats = list(FORMATS) if format is Format.all else [format.value]
    heading = title or f"sicl: {plan or folder.resolve().name.partition('.')[0]}"
    failed = sum(record.status == "failed" for record in records)
    missing = max(0, (planned or 0) - len(records))
    typer.echo(
        f"{len(records)} records, {failed} failed"
        + (f", {missing} not run yet" if missing else "")
        + (f"; {found.left_out} of other plans left out" if found.left_out else "")
    )
    beside = folder if folder.is_dir() else folder.parent
    for path in write_reports(records, output or beside, title=heading, formats=formats, planned=planned):
        typer.echo(str(path))
