"""The sub-rooms of the benchmark: report and paper stand on tables, never on each other."""

from __future__ import annotations

from pathlib import Path

import pytest

import sicl

BENCH = Path(sicl.__file__).parent / "bench"


@pytest.mark.parametrize(
    ("room", "others"), [("report", ("paper",)), ("paper", ("report",)), ("tables", ("report", "paper"))]
)
def test_report_and_paper_do_not_know_each_other(room: str, others: tuple[str, ...]) -> None:
    """What both need lies in tables."""
    for path in (BENCH / room).rglob("*.py"):
        assert not [other for other in others if f"sicl.bench.{other}" in path.read_text()], path
