"""The chart panel of a group of cells, or of a single one."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from sicl.bench.report.charts import Line, colour, line_chart, percent, reliability_diagram, thousands
from sicl.bench.report.parts import heat_map, short_title, tabs
from sicl.bench.run.schema import Record
from sicl.bench.tables.names import METRICS, calibrator_name, short_calibrator
from sicl.bench.tables.pool import Curve, mean_over_time, mean_risk_coverage, pooled_bins
from sicl.bench.tables.summary import Group, calibrators_of, cell_name, domains_of, mean_accuracy, mean_metric
from sicl.bench.tables.svg import tag

MAX_CELL_PANELS = 60
MAX_GROUP_PANELS = 100


def group_panels(groups: Sequence[Group]) -> str:
    """Return the charts of every group and, when there are few cells, of every cell.

    More than 100 groups would make the page too heavy: the later ones are named, and drawn by a report of
    their own folder.
    """
    drawn = [group for group in groups if group.done]
    few = sum(len(group.done) for group in drawn) <= MAX_CELL_PANELS
    items = []
    for i, group in enumerate(drawn[:MAX_GROUP_PANELS]):
        items.append((short_title(group, drawn), _group_panel(f"g{i}", group, few)))
    if not items:
        return tag("p", "No cell finished, so there is nothing to draw.", class_="soft")
    left_out = drawn[MAX_GROUP_PANELS:]
    note = (
        f"Charts of {len(left_out)} more groups are left out to keep the page small; "
        "their numbers are in the tables. Report on a part of the folder to draw them."
    )
    return tabs("groups", items, print_all=len(items) <= 12) + (
        tag("p", note, class_="soft") if left_out else ""
    )


def _group_panel(name: str, group: Group, few: bool) -> str:
    alone = len(group.records) == 1
    whole = _panel(group.done, "" if alone else mean_accuracy(group.records).over)
    if not few or len(group.done) == 1:
        return whole
    cells = [(_cell_title(group, record), _panel([record], "")) for record in group.done]
    return tabs(name, [(f"All {len(group.done)} cells", whole), *cells])


def _cell_title(group: Group, record: Record) -> str:
    """Return the cell's name without what all cells of the group share."""
    title = cell_name(record)
    if len({other.severity for other in group.done}) == 1:
        title = title.replace(f", severity {record.severity}", "")
    if len({other.seed for other in group.done}) == 1:
        title = title.replace(f", seed {record.seed}", "")
    return title


def _panel(records: Sequence[Record], over: str) -> str:
    names = calibrators_of(records)
    note = (
        f"bins pooled over the cells; the number is the mean ECE {over}" if over else "the number is the ECE"
    )
    parts = [tag("h3", f'Reliability <span class="soft">{escape(note)}</span>')]
    parts.append(tag("div", "".join(_reliability(records, name) for name in names), class_="multiples"))
    parts.append(tag("div", "".join(_curves(records, names)), class_="charts"))
    domains = domains_of(records)
    if len(domains) > 1:
        parts.append(tag("h3", "By corruption"))
        parts.append(heat_map(records, names, domains, METRICS["ece"]))
    return "".join(parts)


def _reliability(records: Sequence[Record], name: str) -> str:
    bins = pooled_bins(records, name)
    if bins is None:
        return ""
    ece = METRICS["ece"].text(mean_metric(records, name, "ece").value)
    caption = tag("span", escape(short_calibrator(name)), title=calibrator_name(name))
    head = tag("figcaption", caption + tag("b", f"{ece} %"))
    data = colour(name).removeprefix("c-")
    return tag("figure", head + reliability_diagram(bins, name), data_c=data)


def _curves(records: Sequence[Record], names: Sequence[str]) -> list[str]:
    figures = []
    confidence = _lines(records, names, "confidence")
    if confidence:
        accuracy = mean_over_time(records, names[0], "accuracy")
        assert accuracy is not None
        together = [Line("accuracy", "Accuracy", accuracy), *confidence]
        title = _caption(
            "Confidence against accuracy", "along the stream; a calibrated line follows the dots"
        )
        figures.append(_over_time(records, together, title, "mean confidence, %", from_zero=False))
        title = _caption("Calibration error", "along the stream, in a sliding window; lower is better")
        figures.append(_over_time(records, _lines(records, names, "ece"), title, "ECE, %"))
    if risk := _risk_lines(records, names):
        chart = line_chart(
            risk,
            label="Risk-coverage curves, named with their AURC in %",
            x_title="samples accepted, %",
            y_title="errors among the accepted, %",
            x_text=percent,
        )
        title = _caption("Risk against coverage", "reject the least confident; beside the name the AURC, %")
        figures.append(tag("figure", title + chart))
    return figures


def _caption(title: str, note: str) -> str:
    return tag("figcaption", title + tag("span", note))


def _risk_lines(records: Sequence[Record], names: Sequence[str]) -> list[Line]:
    """Return the risk-coverage curves, the worst area first: they all end in the same point."""
    areas = {name: mean_metric(records, name, "aurc").value or 0.0 for name in names}
    lines = []
    for name in sorted(names, key=lambda name: -areas[name]):
        if (curve := mean_risk_coverage(records, name)) is not None:
            lines.append(Line(name, f"{short_calibrator(name)} {METRICS['aurc'].text(areas[name])}", curve))
    return lines


def _over_time(
    records: Sequence[Record], lines: Sequence[Line], title: str, y_title: str, *, from_zero: bool = True
) -> str:
    shares = float(lines[0].curve.x[-1]) <= 1.0
    segments = {tuple(record.segments) for record in records}
    chart = line_chart(
        lines,
        label=f"{y_title} along the stream",
        x_title="share of the stream, %" if shares else "samples seen",
        y_title=y_title,
        x_text=percent if shares else thousands,
        segments=[] if shares or len(segments) != 1 else list(segments.pop()),
        from_zero=from_zero,
    )
    return tag("figure", title + chart)


def _lines(records: Sequence[Record], names: Sequence[str], key: str) -> list[Line]:
    curves: list[tuple[str, Curve | None]] = [(name, mean_over_time(records, name, key)) for name in names]
    return [Line(name, short_calibrator(name), curve) for name, curve in curves if curve is not None]
