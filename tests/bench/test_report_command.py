"""`sicl report` reads a folder of records and writes what it is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from report_records import failed, some
from typer.testing import CliRunner

from sicl.bench.report import FORMATS
from sicl.cli.report import report
from sicl.errors import DataError

APP = typer.Typer()
APP.command()(report)


def test_the_command_writes_a_page_beside_the_records(tmp_path: Path) -> None:
    """Without options there is one HTML page, and the command says how many cells failed."""
    for i, record in enumerate([*some(), failed()]):
        (tmp_path / f"{i}.json").write_text(record.to_json())
    (tmp_path / "plan-mine.json").write_text('{"plan": "mine", "cells": 7}')
    result = CliRunner().invoke(APP, [str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "5 records, 1 failed, 2 not run yet" in result.output
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert f"sicl: {tmp_path.name}" in page
    assert "2 of 7 planned cells have no record yet" in page


def test_the_command_writes_all_formats_elsewhere(tmp_path: Path) -> None:
    """`--format all --output` leaves the records' folder alone."""
    (tmp_path / "one.json").write_text(some()[0].to_json())
    out = tmp_path / "out"
    arguments = [str(tmp_path), "--format", "all", "--output", str(out), "--title", "Mine"]
    assert CliRunner().invoke(APP, arguments).exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == sorted(FORMATS.values())
    assert (out / "report.md").read_text().startswith("# Mine")
    assert not (tmp_path / "report.html").exists()


def test_a_folder_without_records_is_one_sentence(tmp_path: Path) -> None:
    """The error is a `DataError`, which the command line prints plainly."""
    result = CliRunner().invoke(APP, [str(tmp_path)])
    assert isinstance(result.exception, DataError)
    with pytest.raises(DataError, match="no records"):
        raise result.exception
