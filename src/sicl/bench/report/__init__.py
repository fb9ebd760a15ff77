"""Reports of benchmark records: one HTML page that needs no network, and tables for papers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from sicl.bench.report.page import html_page
from sicl.bench.report.text import comma_separated, latex, markdown
from sicl.bench.run.schema import Record
from sicl.bench.tables.summary import missing
from sicl.data.files import write_atomic
from sicl.errors import DataError, require_choice

__all__ = ["FORMATS", "write_report", "write_reports"]

FORMATS = {"html": "report.html", "md": "report.md", "csv": "report.csv", "latex": "report.tex"}


def write_report(
    records: Sequence[Record],
    path: str | Path,
    *,
    title: str = "sicl report",
    format: str = "html",
    planned: int | None = None,
    parts: Sequence[str] = (),
) -> Path:
    """Write one report file, atomically, and return its path.

    Args:
        records: the cells, done and failed.
        path: the file to write.
        title: the report's heading.
        format: "html", "md", "csv" or "latex".
        planned: how many cells the plan has; the report then says how many have no record yet.
        parts: figures and tables of the paper's kind, as HTML, that stand in the page before its own.

    Raises:
        DataError: no records.
        OptionError: an unknown format.
    """
    require_choice(FORMATS, format=format)
    if not records:
        raise DataError("A report needs at least one record, got none. Run a benchmark first.")
    note = missing(records, planned)
    if format == "csv":
        return write_atomic(path, comma_separated(records))
    if format == "html":
        return write_atomic(path, html_page(records, title, note=note, parts=parts))
    made = {"md": markdown, "latex": latex}
    return write_atomic(path, made[format](records, title, note=note))


def write_reports(
    records: Sequence[Record],
    folder: str | Path,
    *,
    title: str = "sicl report",
    formats: Iterable[str] = FORMATS,
    planned: int | None = None,
) -> list[Path]:
    """Write `report.html`, `report.md`, `report.csv` and `report.tex` (or some of them) into a folder."""
    return [
        write_report(records, Path(folder) / FORMATS[name], title=title, format=name, planned=planned)
        for name in formats
    ]
