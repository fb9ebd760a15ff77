"""The HTML parts of a report: tabs, sortable tables, heat maps and the strip of all cells."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

import numpy as np

from sicl.bench.report.charts import colour, percent
from sicl.bench.run.schema import Record
from sicl.bench.tables.names import MISSING, Metric, calibrator_name, short_calibrator, short_domain
from sicl.bench.tables.pool import Array
from sicl.bench.tables.summary import Group, Mean, mean_domain_ece, mean_metric, winners
from sicl.bench.tables.svg import nice_top, tag, ticks

MAX_DOTS = 200
MAX_TABS = 12


def cell(content: str, value: float | None = None, **attributes: str | None) -> str:
    """Return a table cell that sorts by `value`."""
    return tag("td", content, data_v="" if value is None else f"{value:.6g}", **attributes)


def left(content: str, **attributes: str | None) -> str:
    """Return a table cell of text, aligned left and sorted by its text."""
    return tag("td", escape(content), class_="l", **attributes)


def identity_heads(groups: Sequence[Group]) -> list[tuple[str, bool]]:
    """Return the heads of what tells the groups apart; the title of the page says what they share."""
    return [(head, True) for head, _ in _identity(groups[0], groups)]


def identity_cells(group: Group, groups: Sequence[Group]) -> list[str]:
    """Return the cells that go with `identity_heads`."""
    return [left(text) for _, text in _identity(group, groups)]


def short_title(group: Group, groups: Sequence[Group]) -> str:
    """Return what tells a group from the others: "TENT", or "CIFAR-10-C · TENT · Dynamic"."""
    return " · ".join(text for _, text in _identity(group, groups))


def _identity(group: Group, groups: Sequence[Group]) -> list[tuple[str, str]]:
    columns = {"dataset": "Data set", "model": "Model", "method": "Method", "stream": "Stream"}
    return [
        (columns[field], text)
        for field, text in zip(columns, group.names)
        if field == "method" or len({getattr(one, field) for one in groups}) > 1
    ]


def sortable(heads: Iterable[tuple[str, bool]], rows: Iterable[str], **attributes: str | None) -> str:
    """Return a table whose heads (title, aligned left?) sort it when clicked."""
    cells = "".join(
        tag("th", tag("button", escape(title), type="button"), class_="l" if to_left else None, scope="col")
        for title, to_left in heads
    )
    body = tag("thead", tag("tr", cells)) + tag("tbody", "".join(rows))
    return tag("table", body, class_="sortable", **attributes)


def tabs(name: str, items: Sequence[tuple[str, str]], *, print_all: bool = False) -> str:
    """Return one panel an item (title, content); a row of tabs or, when there are many, a list picks one."""
    if len(items) == 1:
        return items[0][1]
    identifiers = [f"{name}-{i}" for i in range(len(items))]
    if len(items) > MAX_TABS:
        options = (tag("option", escape(title), value=i) for i, (title, _) in zip(identifiers, items))
        head = tag("select", "".join(options), class_="pick", id=name, aria_label="Show")
    else:
        buttons = (
            tag(
                "button",
                escape(title),
                type="button",
                role="tab",
                data_list=name,
                aria_controls=i,
                id=f"{i}-tab",
            )
            for i, (title, _) in zip(identifiers, items)
        )
        head = tag("div", "".join(buttons), class_="tabs", role="tablist", id=name)
    panels = "".join(
        tag("div", _print_title(title) + content, role="tabpanel", id=i, data_owner=name)
        for i, (title, content) in zip(identifiers, items)
    )
    return tag("div", head + panels, class_="print-all" if print_all else None)


def colour_key(calibrators: Iterable[str]) -> str:
    """Return the buttons that name each colour and hide or show its calibrator in the charts."""
    buttons = (
        tag(
            "button",
            escape(calibrator_name(name)),
            type="button",
            class_=colour(name),
            data_c=colour(name).removeprefix("c-"),
            aria_pressed="true",
        )
        for name in calibrators
    )
    return tag("div", "".join(buttons), class_="key", role="group", aria_label="Show or hide calibrators")


def mean_cell(mean: Mean, metric: Metric, *, done: int, win: bool, own: bool) -> str:
    """Return a mean with its spread between seeds and, where it lacks finished cells, how many it has."""
    spread = f" <small>±{metric.text(mean.spread)}</small>" if mean.spread is not None else ""
    partly = f" <small>({mean.done}/{mean.total})</small>" if 0 < mean.done < done else ""
    kinds = " ".join(kind for kind, on in (("win", win), ("own", own)) if on)
    return cell(metric.text(mean.value) + spread + partly, mean.value, class_=kinds or None)


def heat_map(
    records: Sequence[Record], calibrators: Sequence[str], domains: Sequence[str], ece: Metric
) -> str:
    """Return ECE by calibrator and corruption, darker where it is higher, the best of a column framed."""
    table = {
        name: {domain: mean_domain_ece(records, name, domain) for domain in domains} for name in calibrators
    }
    known = [value for row in table.values() for value in row.values() if value is not None]
    top = max(max(known, default=0.0), 0.05)
    best = {domain: winners({name: table[name][domain] for name in calibrators}, ece) for domain in domains}
    heads = "".join(tag("th", escape(short_domain(d)), scope="col", title=d) for d in domains)
    rows = [tag("tr", tag("th", "ECE, %", class_="l") + heads)]
    for name in calibrators:
        label = tag("span", escape(short_calibrator(name)), class_=f"dot-c {colour(name)}")
        cells = "".join(_heat_cell(table[name][d], top, ece, name in best[d]) for d in domains)
        rows.append(tag("tr", tag("th", label, class_="l", scope="row") + cells))
    return tag("div", tag("table", "".join(rows), class_="heat"), class_="wide")


def strip(records: Sequence[Record], calibrators: Sequence[str], metric: Metric, wins: dict[str, int]) -> str:
    """Return one row a calibrator: every cell a dot, the mean a bar, and how often it is best."""
    values = {
        name: np.array([v for r in records if (v := r.calibrators.get(name, {}).get(metric.key)) is not None])
        for name in calibrators
    }
    top = nice_top(max((float(v.max()) for v in values.values() if len(v)), default=0.05))
    n_done = sum(record.status == "done" for record in records)
    rows = [
        tag("span", "", class_="head"),
        tag("span", f"{metric.title} of every cell, % {metric.arrow}", class_="head"),
        tag("span", "mean", class_="head value"),
        tag("span", "best in cells", class_="head wins"),
    ]
    for name in calibrators:
        kind = "is-sicl" if name == "sicl" else ""
        rows += [
            tag("span", escape(calibrator_name(name)), class_=f"dot-c {colour(name)} {kind}".strip()),
            _strip_row(values[name], top, colour(name)),
            tag(
                "span",
                metric.text(mean_metric(records, name, metric.key).value) + metric.unit,
                class_="value",
            ),
            tag("span", f"{wins[name]} of {n_done}", class_="wins"),
        ]
    # On a phone the last labels would touch where there are many.
    labelled = ticks(0, top)[:: 2 if len(ticks(0, top)) > 5 else 1]
    marks = "".join(
        tag("text", percent(v), x=f"{100 * v / top:.2f}%", y=11, class_=f"tick {_anchor(v, top)}")
        for v in labelled
    )
    rows += [
        "<span></span>",
        tag("svg", marks, style="height:16px"),
        "<span></span>",
        '<span class="wins"></span>',
    ]
    return tag("div", "".join(rows), class_="strip")


def _strip_row(values: Array, top: float, kind: str) -> str:
    def place(value: float) -> str:
        return f"{100 * value / top:.2f}%"

    rails = "".join(
        tag("line", x1=place(v), x2=place(v), y1="0", y2="100%", class_="rail") for v in ticks(0, top)
    )
    if len(values) == 0:
        return tag("svg", rails, class_=kind)
    if len(values) <= MAX_DOTS:
        marks = "".join(
            tag("circle", cx=place(v), cy="50%", r="4", class_="dot", data_t=f"{100 * v:.1f} %")
            for v in values
        )
    else:
        low, q1, q3, high = np.quantile(values, [0.05, 0.25, 0.75, 0.95])
        tip = f"half of the cells: {100 * q1:.1f} to {100 * q3:.1f} %; nine of ten: "
        tip += f"{100 * low:.1f} to {100 * high:.1f} %"
        marks = tag("line", x1=place(low), x2=place(high), y1="50%", y2="50%", class_="whisker")
        width = place(q3 - q1)
        marks += tag(
            "rect", x=place(q1), width=width, y="18%", height="64%", class_="box", data_t=tip, rx="3"
        )
    average = place(values.mean())
    marks += tag("line", x1=average, x2=average, y1="14%", y2="86%", class_="mean")
    return tag("svg", rails + marks, class_=kind)


def _anchor(value: float, top: float) -> str:
    return "mid" if 0 < value < top * 0.97 else "end" if value else ""


def _heat_cell(value: float | None, top: float, metric: Metric, best: bool) -> str:
    if value is None:
        return tag("td", MISSING, style="--v:0")
    share = value / top
    # Beyond this share white has more contrast with the cell's colour than black.
    kinds = " ".join(kind for kind, on in (("deep", share > 0.86), ("best", best)) if on)
    return tag("td", metric.text(value), style=f"--v:{share:.2f}", class_=kinds or None)


def _print_title(title: str) -> str:
    return tag("h3", escape(title), class_="print-title", hidden="")
