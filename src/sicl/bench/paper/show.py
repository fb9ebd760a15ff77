"""Print a preset's numbers, and write them beside its records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from sicl.bench.paper.drawings import drawing
from sicl.bench.paper.figures import sheets
from sicl.bench.paper.presets import PRESETS
from sicl.bench.run.live import make_console
from sicl.bench.run.schema import Record
from sicl.bench.tables.sheets import Row, Sheet
from sicl.data.files import write_atomic

LONG, SHOWN = 40, 12
"""Lines with more points than the first are printed with the second; other sheets of that length are not."""


@dataclass(frozen=True)
class Shown:
    """What a preset's records were made into.

    Args:
        path: the Markdown file.
        parts: what the report shows of them, as HTML.
    """

    path: Path
    parts: list[str]


def show_preset(name: str, records: Sequence[Record], folder: Path, console: Console | None = None) -> Shown:
    """Print the sheets of a preset, and write them as Markdown, CSV and one SVG figure."""
    console = console or make_console()
    made = sheets(name, records, folder)
    for sheet in made:
        _print(sheet, folder / name, console)
        write_atomic(folder / name / f"{sheet.name}.csv", sheet.to_csv())
    drawn = drawing(name, PRESETS[name].title, made, records)
    parts = [f"# {PRESETS[name].title}\n", *(sheet.to_markdown() for sheet in made)]
    if drawn is not None:
        write_atomic(folder / f"{name}.svg", drawn.svg())
        parts.insert(1, f"![{PRESETS[name].title}]({name}.svg)\n")
    path = write_atomic(folder / f"{name}.md", "\n".join(parts))
    if name.startswith("table") and not any(sheet.name == "paper" for sheet in made):
        settings = dict.fromkeys(f"{record.dataset} / {record.model}" for record in records)
        console.print(f"The paper prints no numbers for {', '.join(settings)}.")
    console.print(f"Numbers in {path} and {folder / name}" + (", drawing beside them." if drawn else "."))
    tables = [sheet.to_html() for sheet in made if sheet.best or sheet.name == "wins"]
    return Shown(path, [*([drawn.html()] if drawn else []), *tables])


def _print(sheet: Sheet, folder: Path, console: Console) -> None:
    """Print a sheet, turned if that makes it fit; of a long line over time a few points, of a long list nothing."""
    shown, where = sheet, f"{folder / sheet.name}.csv"
    if _long(sheet):
        shown = replace(sheet, rows=_some(sheet))
        if not shown.rows:
            told = f"\n{sheet.title}: {len(sheet.rows)} rows, in {where}."
            console.print(told, style="dim", soft_wrap=True, markup=False)
            return
    elif sheet.best == "column" and _width(sheet) > max(console.width, _width(sheet.turned())):
        shown = sheet.turned()
    console.print(f"\n{sheet.title}", style="bold", markup=False)
    if shown.rows:
        table = Table(box=None)
        table.add_column(Text(shown.corner))
        for column in shown.columns:
            # "ResNet-50 TENT" as two lines, as the paper has its networks above their methods.
            head = column.replace(" ", "\n", 1) if shown.best else column
            table.add_column(Text(head), justify="right")
        for (name, _), values in zip(shown.rows, shown.texts("[bold]{}[/bold]")):
            table.add_row(Text(name), *map(Text.from_markup, values))
        console.print(table)
    rest = f"{len(shown.rows)} of {len(sheet.rows)} rows; all are in {where}." if _long(sheet) else ""
    if rest or sheet.note:
        console.print(f"{rest} {sheet.note}".strip(), style="dim", soft_wrap=True, markup=False)


def _width(sheet: Sheet) -> int:
    """Return the columns of text that a sheet takes as it is."""
    names = max((len(name) for name, _ in sheet.rows), default=0)
    heads = (max(len(word) for word in column.split(" ", 1)) for column in sheet.columns)
    return names + sum(2 + max(width, 5) for width in heads)


def _some(sheet: Sheet) -> tuple[Row, ...]:
    """Return rows from the first to the last, evenly apart, if they are points of a line."""
    if not sheet.numeric:
        return ()
    last = len(sheet.rows) - 1
    return tuple(sheet.rows[round(i * last / (SHOWN - 1))] for i in range(SHOWN))


def _long(sheet: Sheet) -> bool:
    return len(sheet.rows) > (SHOWN if sheet.numeric else LONG)
