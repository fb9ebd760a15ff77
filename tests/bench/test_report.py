"""Reports say what they average over, name winners, escape text and stay small."""

from __future__ import annotations

import csv
import io
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest
from report_records import cell, failed, many, some

from sicl.bench.paper import CORRUPTIONS
from sicl.bench.report import write_report, write_reports
from sicl.bench.report.page import html_page
from sicl.bench.report.text import comma_separated, latex, markdown
from sicl.bench.run.record import Record
from sicl.bench.tables.names import METRICS
from sicl.bench.tables.pool import mean_over_time, pooled_bins
from sicl.bench.tables.summary import (
    cell_winners,
    compare_with_paper,
    group_records,
    mean_metric,
    mean_winners,
    winners,
)
from sicl.bench.tables.svg import nice_top, spread_labels, ticks
from sicl.errors import DataError, OptionError

VOID = {"meta", "input", "br", "link"}


class Nesting(HTMLParser):
    """Checks that every element is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Open an element."""
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Close the innermost element, which must be this one."""
        assert self.open.pop() == tag


def without(record: Record, calibrator: str) -> Record:
    """Return the record of a cell run without one calibrator."""
    kept = {name: numbers for name, numbers in record.calibrators.items() if name != calibrator}
    return replace(record, calibrators=kept)


def test_a_mean_says_how_many_cells_it_is_over() -> None:
    """Failed cells and cells run without the calibrator are told apart, never averaged over silently."""
    records = [*some(), failed()]
    mean = mean_metric(records, "sicl", "ece")
    values = [record.calibrators["sicl"]["ece"] for record in records[:4]]
    assert mean.value == pytest.approx(sum(values) / 4)
    assert mean.over == "over 4 of 5 cells (1 failed)"
    partly = mean_metric([without(records[0], "sicl"), *records[1:]], "sicl", "ece")
    assert partly.over == "over 3 of 5 cells (1 failed, 1 without it)"


def test_the_spread_is_that_between_seeds_and_only_when_seeds_are_equal() -> None:
    """Two seeds of two cells each have one; when a cell of one seed is missing there is none."""
    records = [cell(name, seed=seed) for name in CORRUPTIONS[:2] for seed in (0, 1)]
    by_seed = [mean_metric(records[seed::2], "sicl", "ece").value or 0 for seed in (0, 1)]
    spread = mean_metric(records, "sicl", "ece").spread
    assert spread == pytest.approx(abs(by_seed[0] - by_seed[1]) / 2**0.5)
    assert mean_metric(records[1:], "sicl", "ece").spread is None
    assert mean_metric(records[::2], "sicl", "ece").spread is None


def test_winners_follow_the_direction_of_the_metric_and_ties_share() -> None:
    """Low ECE wins, high AUROC wins, and equal printed values win together."""
    values = {"a": 0.10004, "b": 0.1, "c": 0.3, "d": None}
    assert winners(values, METRICS["ece"]) == {"a", "b"}
    assert winners(values, METRICS["auroc"]) == {"c"}
    assert winners({"d": None}, METRICS["ece"]) == set()


def test_a_mean_over_fewer_cells_cannot_win() -> None:
    """A calibrator that skipped the hard cells is not compared with those that ran them."""
    records = some()
    hard = [record.calibrators["sicl"]["ece"] for record in records]
    easiest = hard.index(min(hard))
    partly = [record if i == easiest else without(record, "sicl") for i, record in enumerate(records)]
    means = {name: mean_metric(partly, name, "ece") for name in ("sicl", "sicl_paper")}
    assert (means["sicl"].value or 1) < (means["sicl_paper"].value or 0)
    assert mean_winners(means, METRICS["ece"]) == {"sicl_paper"}


def test_pooled_bins_are_the_bins_of_all_samples() -> None:
    """Counts add up, and means are weighted by them."""
    records = some()
    pooled = pooled_bins(records, "softmax")
    assert pooled is not None
    tables = [record.calibrators["softmax"]["reliability"] for record in records]
    assert pooled.count.sum() == sum(record.n for record in records)
    last = [table["count"][-1] for table in tables]
    expected = sum(n * table["accuracy"][-1] for n, table in zip(last, tables)) / sum(last)
    assert pooled.accuracy[-1] == pytest.approx(expected)
    assert pooled_bins(records, "unknown") is None


def test_streams_of_different_length_are_averaged_by_their_share() -> None:
    """The x axis is then a share of the stream, not a count."""
    same = mean_over_time(some(), "sicl", "ece")
    mixed = mean_over_time([cell(), cell(n=960)], "sicl", "ece")
    assert same is not None
    assert mixed is not None
    assert (same.x[-1], mixed.x[-1]) == (1600, 1.0)


def test_groups_keep_the_order_of_the_field_and_cells_that_of_the_paper() -> None:
    """TENT comes before SoTTA, gaussian noise before fog, whatever order records come in."""
    records = [cell("fog", method="sotta"), cell("fog"), cell("gaussian_noise")]
    groups = group_records(records)
    assert [group.method for group in groups] == ["tent", "sotta"]
    assert [record.corruption for record in groups[0].records] == ["gaussian_noise", "fog"]


def test_ours_stands_beside_the_papers_number_for_the_same_corruptions() -> None:
    """Four corruptions are compared with the mean of their four printed values."""
    rows = {row.calibrator: row for row in compare_with_paper(group_records(some()))}
    ours = mean_metric(some(), "sicl", "cumulative_ece").value or 0
    assert rows["sicl"].ours == pytest.approx(100 * ours)
    assert rows["sicl"].paper == pytest.approx((4.78 + 5.23 + 7.55 + 1.20) / 4)
    assert "4 printed values" in rows["sicl"].note
    assert "softmax" not in rows


def test_a_main_table_number_notes_missing_corruptions() -> None:
    """The main table prints only averages over 15 corruptions, and accuracy."""
    rows = {row.calibrator: row for row in compare_with_paper(group_records(some(model="resnet50")))}
    assert (rows["sicl"].paper, rows["accuracy"].paper) == (6.4, 77.1)
    assert "4 of the 15 corruptions" in rows["sicl"].note
    assert compare_with_paper(group_records(some(method="source"))) == []


def test_the_page_is_well_formed_and_needs_nothing_else() -> None:
    """Elements nest; no address is fetched; a policy forbids it."""
    page = html_page([*some(), failed()], "Four <cells> & one")
    parser = Nesting()
    parser.feed(page)
    assert parser.open == []
    assert "Four &lt;cells&gt; &amp; one" in page
    assert "CUDA out of memory &lt;64 GiB&gt;." in page
    assert re.findall(r"(?:src|href)=\"(?!#)[^\"]*|url\(|@import", page) == []
    assert "default-src 'none'" in page


def test_the_page_has_every_part() -> None:
    """Summary, tables, diagrams, curves, heat map, paper, cells, failures and set-up."""
    page = html_page([*some(), failed()], "All")
    for anchor in ("overview", "results", "charts", "paper", "cells", "failed", "setup"):
        assert f'id="{anchor}"' in page
    assert "over 4 of 5 cells (1 failed)" in page
    assert page.count('<svg viewBox="0 0 180 208"') == 7 * 5
    assert page.count('class="lines"') == 3 * 5
    assert page.count('class="heat"') == 1
    assert "method.predict" in page


def test_the_page_is_the_same_for_the_same_records() -> None:
    """No clock and no random order: a report can be compared byte by byte."""
    assert html_page(some(), "x") == html_page(some(), "x")


def test_a_report_of_failures_only_still_says_so() -> None:
    """No metrics, no charts, but every cell and its reason."""
    page = html_page([failed(), failed("fog", "It broke.")], "Nothing")
    assert "It broke." in page
    assert "0 <small>of 2</small>" in page
    assert "No cell finished (2 failed)" in markdown([failed(), failed("fog")], "x")
    assert "--" in latex([failed()], "x")


def test_a_single_sample_cell_can_be_drawn() -> None:
    """One point makes no line, but no error either."""
    parser = Nesting()
    parser.feed(html_page([cell(n=64)], "tiny"))
    assert parser.open == []


def test_unknown_calibrators_get_a_colour_and_a_name() -> None:
    """A user's own calibrator stands beside the known ones, with odd characters made harmless."""
    record = cell()
    own = replace(record, calibrators={**record.calibrators, "my own*": record.calibrators["sicl"]})
    page = html_page([own], "x")
    assert re.search(r"\.c-my-own-\{--c:#[0-9a-f]{6}\}", page)
    assert "My own*" in page


def test_names_cannot_break_out_of_an_attribute() -> None:
    """A quote in a calibrator's or a corruption's name stays text."""
    record = cell()
    odd = 'x" onclick="alert(1)'
    own = replace(record, corruption=odd, calibrators={odd: record.calibrators["sicl"]})
    page = html_page([own, cell("snow")], "x")
    parser = Nesting()
    parser.feed(page)
    assert 'onclick="alert' not in page
    assert "&quot; onclick=&quot;alert(1)" in page


def test_a_thousand_records_make_a_small_page_quickly(tmp_path: Path) -> None:
    """Under 10 seconds and under 10 MB, all four formats together."""
    records = many(1000)
    start = time.perf_counter()
    paths = write_reports(records, tmp_path)
    assert time.perf_counter() - start < 10
    assert sum(path.stat().st_size for path in paths) < 10_000_000


def test_markdown_has_counts_winners_and_the_paper() -> None:
    """The best value of a row is bold and means carry their counts."""
    text = markdown([*some(), failed()], "Title")
    best = METRICS["ece"].text(mean_metric(some(), "sicl", "ece").value)
    assert f"- SICL: mean ECE {best} % over 4 of 5 cells (1 failed)" in text
    assert f"**{best}**" in text
    assert "| 4/5 |" in text
    assert "## Beside the paper" in text
    assert "CUDA out of memory" in text


def test_csv_has_one_line_a_cell_and_calibrator() -> None:
    """Numbers are shares; failed cells keep a line with their error and no numbers."""
    rows = list(csv.DictReader(io.StringIO(comma_separated([cell(), failed()]))))
    assert len(rows) == 8
    row = next(row for row in rows if row["calibrator"] == "sicl")
    assert float(row["ece"]) == cell().calibrators["sicl"]["ece"]
    assert float(row["paper_cumulative_ece"]) == pytest.approx(0.0217)
    assert (rows[-1]["status"], rows[-1]["ece"], rows[-1]["calibrator"]) == ("failed", "", "")


def test_latex_escapes_names_and_marks_the_best() -> None:
    """The table compiles with booktabs: special characters are escaped, braces balance."""
    text = latex(some(model="my_model"), "50% & more")
    assert r"my\_model" in text
    assert r"50\% \& more" in text
    assert r"\textbf{" in text
    assert "over 4 of 4 cells" in text
    assert text.count("{") == text.count("}")
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {11}


def test_axis_ticks_are_round_and_labels_keep_apart() -> None:
    """Ticks lie inside the range; labels are at least the gap apart and inside the frame."""
    assert ticks(0, 0.31) == [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3]
    assert nice_top(0.31) == pytest.approx(0.35)
    places = spread_labels([10.0, 10.0, 11.0, 90.0, 89.0], 12, 0, 90)
    gaps = sorted(places)
    assert all(b - a >= 12 - 1e-9 for a, b in pairwise(gaps))
    assert 0 <= min(places) <= max(places) <= 90


def test_cell_winners_are_found_per_cell() -> None:
    """The winner of a cell is the calibrator with its lowest ECE."""
    record = cell()
    lowest = min(record.calibrators, key=lambda name: record.calibrators[name]["ece"])
    assert lowest in cell_winners(record, METRICS["ece"])
    assert cell_winners(failed(), METRICS["ece"]) == set()


@pytest.mark.parametrize("name", ["html", "md", "latex"])
def test_planned_cells_without_a_record_are_not_passed_over(tmp_path: Path, name: str) -> None:
    """A report made while a plan still runs says how many cells are missing."""
    note = "6 of 10 planned cells have no record yet"
    assert note in write_report(some(), tmp_path / "a", format=name, planned=10).read_text(encoding="utf-8")
    assert "no record yet" not in write_report(some(), tmp_path / "b", format=name, planned=4).read_text(
        encoding="utf-8"
    )


def test_no_records_and_unknown_formats_are_refused(tmp_path: Path) -> None:
    """Both errors say what to do."""
    with pytest.raises(DataError, match="at least one record"):
        write_report([], tmp_path / "x.html")
    with pytest.raises(OptionError, match="html, md, csv, latex"):
        write_report(some(), tmp_path / "x.pdf", format="pdf")
