"""Names: what the package has by name is known wherever its name is looked up."""

from __future__ import annotations

from sicl.bench.plan import registry
from sicl.bench.plan.cost import CALIBRATOR_PASSES, METHOD_PASSES
from sicl.bench.report.page import DARK
from sicl.bench.tables import printed
from sicl.bench.tables.names import CALIBRATOR_COLOURS, CALIBRATOR_NAMES, METHODS, SHORT_DOMAINS, STREAMS
from sicl.corruptions import _FUNCTIONS, CATEGORIES, CORRUPTIONS, VALIDATION_CORRUPTIONS


def test_every_calibrator_has_a_written_name_a_colour_and_a_cost() -> None:
    """A calibrator that is added shows in reports and estimates like the others."""
    names = set(registry.names("calibrator"))
    assert set(CALIBRATOR_NAMES) == set(CALIBRATOR_COLOURS) == names
    assert set(CALIBRATOR_PASSES) | {"sicl", "sicl_paper"} == names
    assert all(f"--{name}:" in DARK for name in names)


def test_every_method_and_stream_has_a_written_name_and_a_cost() -> None:
    """A method that is added is written as its authors do, not by its key."""
    assert set(registry.known("method")) <= set(METHODS)
    assert set(registry.known("method")) == set(METHOD_PASSES)
    assert set(registry.known("stream")) == set(STREAMS)


def test_corruptions_are_listed_once_and_the_papers_are_the_same() -> None:
    """The constants' table is the list; the printed tables, short names and categories follow its order."""
    assert printed.CORRUPTIONS == CORRUPTIONS == tuple(SHORT_DOMAINS) == sum(CATEGORIES.values(), ())
    assert tuple(_FUNCTIONS) == (*CORRUPTIONS, *VALIDATION_CORRUPTIONS)
    assert all(function.__name__ == name for name, function in _FUNCTIONS.items())
