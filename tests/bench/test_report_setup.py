"""The report's set-up section and table of cells: what all share once, what differs with counts."""

from __future__ import annotations

import re
from dataclasses import replace

from report_records import cell

from sicl.bench.report.page import html_page
from sicl.bench.report.setup import condensed, flatten, setup_section


def test_settings_that_differ_are_counted() -> None:
    """What all cells share stands once; what differs carries how many cells have it."""
    section = setup_section([cell("fog", seed=0), cell("fog", seed=1), cell("snow", seed=1)])
    assert "1.5 (1 of 3 cells)" in section
    assert "2.5 (2 of 3 cells)" in section
    assert section.count("<dt>method.lr</dt><dd>0.001</dd>") == 1
    assert flatten({"a": {"b": [1, 2]}, "c": "x"}) == {"a.b": "[1, 2]", "c": "x"}


def test_settings_stand_once_as_they_were_used() -> None:
    """Planned and used options are one; names, seeds and corruptions are in the tables already."""
    spec = {
        "method": {"name": "tent", "label": "tent", "class": "sicl:Tent", "options": {"seed": 0}},
        "stream": {"name": "benign", "options": {"corruption": "fog", "severity": 5, "batch_size": 64}},
        "calibrators": {"mine": {"name": "softmax", "options": {}}, "odd": "x"},
        "seed": 3,
        "resolved": {"method": {"class": "Tent", "lr": 0.001, "seed": 0}, "calibrators": {"mine": {"t": 2}}},
        "note": "of mine",
    }
    assert condensed(spec) == {
        "method": {"lr": 0.001},
        "stream": {"batch_size": 64},
        "calibrators": {"mine": {"t": 2}, "odd": "x"},
        "note": "of mine",
    }


def test_cells_have_a_column_for_severity_and_seed_only_where_they_differ() -> None:
    """On a phone every column counts."""
    one, other = cell("fog"), cell("fog", seed=1)
    heads = re.findall(r"<th[^>]*>.*?</th>", html_page([one, replace(other, seed=0)], "x"))
    assert not [head for head in heads if "Severity" in head or "Seed" in head]
    heads = re.findall(r"<th[^>]*>.*?</th>", html_page([one, replace(other, severity=3)], "x"))
    assert len([head for head in heads if "Severity" in head or "Seed" in head]) == 2
