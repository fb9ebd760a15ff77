"""Print a preset's numbers, and write them beside its records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from sicl.bench.files import write_atomic
from sicl.bench.paper.charts import chart
from sicl.bench.paper.figures import sheets
from sicl.bench.paper.presets import PRESETS
from sicl.bench.paper.sheets import Sheet, number
from sicl.bench.progress import make_console
from sicl.bench.schema import Record


def show_preset(name: str, records: Sequence[Record], folder: Path, console: Console | None = None) -> Path:
    """Print the sheets of a preset, write them as Markdown, CSV and SVG, and return the Markdown file."""
    console = console or make_console()
    made = sheets(name, records, folder)
    for sheet in made:
        _print(sheet, console)
        write_atomic(folder / name / f"{sheet.name}.csv", sheet.to_csv())
        if sheet.rows:
            write_atomic(folder / name / f"{sheet.name}.svg", chart(sheet))
    text = "\n".join([f"# {PRESETS[name].title}\n", *(sheet.to_markdown() for sheet in made)])
    path = write_atomic(folder / f"{name}.md", text)
    console.print(f"Numbers in {path} and {folder / name}.")
    return path


def _print(sheet: Sheet, console: Console) -> None:
    table = Table(sheet.corner, title=sheet.title, title_justify="left", caption=sheet.note, box=None)
    for column in sheet.columns:
        table.add_column(column, justify="right")
    for row, values in sheet.rows:
        table.add_row(row, *(number(value) for value in values))
    console.print(table)
