"""Print a preset's numbers, and write them beside its records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sicl.bench.paper.charts import chart, is_numeric
from sicl.bench.paper.figures import sheets
from sicl.bench.paper.presets import PRESETS
from sicl.bench.run.files import write_atomic
from sicl.bench.run.progress import make_console
from sicl.bench.run.schema import Record
from sicl.bench.tables.sheets import Row, Sheet, number

LONG, SHOWN = 40, 12
"""Lines with more points than the first are printed with the second; other sheets of that length are not."""


def show_preset(name: str, records: Sequence[Record], folder: Path, console: Console | None = None) -> Path:
    """Print the sheets of a preset, write them as Markdown, CSV and SVG, and return the Markdown file."""
    console = console or make_console()
    made = sheets(name, records, folder)
    for sheet in made:
        _print(sheet, folder / name, console)
        write_atomic(folder / name / f"{sheet.name}.csv", sheet.to_csv())
        if sheet.rows:
            write_atomic(folder / name / f"{sheet.name}.svg", chart(sheet))
    text = "\n".join([f"# {PRESETS[name].title}\n", *(sheet.to_markdown() for sheet in made)])
    path = write_atomic(folder / f"{name}.md", text)
    if name.startswith("table") and not any(sheet.name == "paper" for sheet in made):
        settings = dict.fromkeys(f"{record.dataset} / {record.model}" for record in records)
        console.print(f"The paper prints no numbers for {', '.join(settings)}.")
    console.print(f"Numbers and drawings in {path} and {folder / name}.")
    return path


def _print(sheet: Sheet, folder: Path, console: Console) -> None:
    """Print a sheet; a long one is in its file, and of a line over time a few points are printed."""
    console.print(f"\n[bold]{sheet.title}[/bold]")
    rows = _some(sheet) if len(sheet.rows) > LONG else sheet.rows
    if rows:
        table = Table(sheet.corner, box=None)
        for column in sheet.columns:
            table.add_column(column, justify="right")
        for name, values in rows:
            table.add_row(name, *(number(value, sheet.digits) for value in values))
        console.print(table)
    rest = f"{len(rows)} of {len(sheet.rows)} rows; all are in {folder / sheet.name}.csv."
    parts = (rest if len(rows) < len(sheet.rows) else "", sheet.note)
    if any(parts):
        console.print(" ".join(part for part in parts if part), style="dim", soft_wrap=True)


def _some(sheet: Sheet) -> tuple[Row, ...]:
    """Return rows from the first to the last, evenly apart, if they are points of a line."""
    if not is_numeric(sheet):
        return ()
    last = len(sheet.rows) - 1
    return tuple(sheet.rows[round(i * last / (SHOWN - 1))] for i in range(SHOWN))
