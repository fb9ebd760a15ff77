"""The picture of a stream over time."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from sicl.data import Dataset
from sicl.errors import InputError
from sicl.streams import Dynamic, Plan
from sicl.streams.picture import draw
from sicl.streams.plan import runs

SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_has_a_bar_for_every_run(painted: Dataset) -> None:
    """Well-formed SVG: a background, a row a domain, a bar a run, the domains' names."""
    plan = Dynamic(per_corruption=40).plan(painted)
    root = ElementTree.fromstring(draw(plan, title="gamma < 1 & slots", batch_size=64))
    assert len(root.findall(f"{SVG}rect")) == 1 + 15 + len(runs(plan.domain_ids))
    texts = [element.text for element in root.findall(f"{SVG}text")]
    assert set(plan.domains) < set(texts)
    assert "time: 600 samples in 10 batches" in texts
    assert "gamma < 1 & slots" in texts


def test_bars_cover_the_time_axis_once(painted: Dataset) -> None:
    """The widths of all runs add up to the width of the axis."""
    plan = Dynamic(per_corruption=40, gamma=0.05).plan(painted)
    bars = ElementTree.fromstring(draw(plan)).findall(f"{SVG}rect")[16:]
    assert sum(float(bar.attrib["width"]) for bar in bars) == pytest.approx(760, abs=2)


def test_an_empty_plan_cannot_be_drawn() -> None:
    """There is no time axis without samples."""
    with pytest.raises(InputError, match="at least one sample"):
        draw(Plan(np.empty(0, np.int64), np.empty(0, np.int16), ("fog",)))
