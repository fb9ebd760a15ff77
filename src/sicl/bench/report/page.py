"""The report as one self-contained HTML page: no network, no fonts, no libraries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from importlib.resources import files

from sicl import __version__
from sicl.bench.report.charts import colour
from sicl.bench.report.panels import group_panels
from sicl.bench.report.parts import (
    MAX_DOTS,
    cell,
    colour_key,
    identity_cells,
    identity_heads,
    left,
    mean_cell,
    sortable,
    strip,
    tabs,
)
from sicl.bench.report.setup import setup_section
from sicl.bench.run.schema import Record
from sicl.bench.tables.names import (
    CALIBRATOR_NAMES,
    METRICS,
    MISSING,
    Metric,
    calibrator_name,
    domain_name,
)
from sicl.bench.tables.summary import (
    Group,
    calibrators_of,
    cell_winners,
    compare_with_paper,
    group_records,
    mean_accuracy,
    mean_metric,
    mean_winners,
    metrics_of,
)
from sicl.bench.tables.svg import colour_of, tag

ASSETS = files("sicl.bench.report") / "assets"
DARK = "\n" + (ASSETS / "dark.css").read_text(encoding="utf-8")
LONG = 30
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
MOON = '<svg viewBox="0 0 24 24"><path d="M20 14.5A8.5 8.5 0 1 1 9.5 4a7 7 0 0 0 10.5 10.5z"/></svg>'


def html_page(records: Sequence[Record], title: str, *, note: str = "", parts: Sequence[str] = ()) -> str:
    """Return the whole page; `note` stands above everything, `parts` (HTML) after the overview."""
    groups = group_records(records)
    names = calibrators_of(records)
    sections = {
        "overview": ("Overview", _overview(records, names)),
        "figure": ("As in the paper", "".join(parts)),
        "results": ("Results", _results(records, groups, names)),
        "charts": ("Charts", colour_key(names) + group_panels(groups) if names else ""),
        "paper": ("Beside the paper", _paper(groups)),
        "cells": ("Cells", cells_table(records, groups, names)),
        "failed": ("Failed cells", _failed(records)),
        "setup": ("Set-up", setup_section(records)),
    }
    shown = {key: part for key, part in sections.items() if part[1]}
    body = "".join(
        tag("section", tag("h2", head) + content, id=key) for key, (head, content) in shown.items()
    )
    links = "".join(tag("a", head, href=f"#{key}") for key, (head, _) in shown.items())
    toggle = tag("button", MOON, class_="theme", type="button", aria_label="Switch between light and dark")
    lede = tag("p", escape(_lede(records, groups)), class_="soft")
    lede += tag("p", escape(note), class_="note", role="note") if note else ""
    top = tag(
        "div", tag("div", tag("h1", escape(title)) + lede + tag("nav", links)) + toggle, class_="bar-top"
    )
    foot = tag("footer", f"Made by sicl {escape(__version__)} from {len(records)} records. {_LEGEND}")
    return _document(title, names, top + tag("main", _facts(records, names) + body) + foot)


_LEGEND = (
    "ECE has 15 equal-width bins. Out-of-distribution samples count for OOD AUROC only. "
    "± is the standard deviation between seeds."
)


def _document(title: str, names: Sequence[str], body: str) -> str:
    style = (ASSETS / "report.css").read_text(encoding="utf-8")
    dark = f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{{DARK}}} }}\n"
    dark = f"@media screen {{ {dark} :root[data-theme=dark] {{{DARK}}} }}"
    style = style.replace("/*dark*/", dark) + _colours(names)
    script = (ASSETS / "report.js").read_text(encoding="utf-8")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title><style>{style}</style>"
    )
    tail = f'<div id="tip" hidden></div><script>{script}</script>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}{tail}</body></html>\n'


def _colours(names: Sequence[str]) -> str:
    """Return each calibrator's colour; those the style sheet does not know get hues of their own."""
    values = {name: f"var(--{name})" if name in CALIBRATOR_NAMES else colour_of(name) for name in names}
    rules = (f".{colour(name)}{{--c:{value}}}" for name, value in values.items())
    return "".join((".c-accuracy{--c:var(--ink)}", *rules))


def _lede(records: Sequence[Record], groups: Sequence[Group]) -> str:
    parts = []
    for names in zip(*((*group.names[:3], group.names[3].lower()) for group in groups)):
        unique = list(dict.fromkeys(names))
        more = f" and {len(unique) - 4} more" if len(unique) > 4 else ""
        parts.append(", ".join(unique[:4]) + more)
    seeds = {record.seed for record in records}
    told = "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    return " · ".join((*parts[:3], f"{parts[3]} stream", told))


def _facts(records: Sequence[Record], names: Sequence[str]) -> str:
    ece = METRICS["ece"]
    done = [record for record in records if record.status == "done"]
    n = sum(record.n + record.n_ood for record in done)
    cards = [_fact("Cells finished", f"{len(done)} <small>of {len(records)}</small>", f"{n:,} samples")]
    means = {name: mean_metric(records, name, "ece") for name in names}
    best = sorted(mean_winners(means, ece))
    if best:
        value = f"{ece.text(means[best[0]].value)}<small> %</small>"
        cards.insert(0, _fact(f"Lowest mean ECE: {_names(best)}", value, means[best[0]].over, hero=best[0]))
        wins = _wins(done, names)
        most = max(names, key=lambda name: wins[name])
        value = f"{wins[most]} <small>of {len(done)}</small>"
        cards.insert(
            1, _fact(f"Best in most cells: {calibrator_name(most)}", value, "by ECE, ties count for all")
        )
        accuracy = mean_accuracy(records)
        value = f"{ece.text(accuracy.value)}<small> %</small>"
        cards.append(_fact("Mean accuracy", value, "calibration leaves it as it is"))
    return tag("div", "".join(cards), class_="facts")


def _fact(head: str, value: str, note: str, hero: str = "") -> str:
    """Return a card; `hero` is the calibrator whose colour it wears."""
    content = tag("span", escape(head)) + tag("b", value) + tag("span", escape(note))
    return tag("div", content, class_=f"fact hero {colour(hero)}" if hero else "fact")


def _names(keys: Sequence[str]) -> str:
    return ", ".join(calibrator_name(key) for key in keys)


def _wins(done: Sequence[Record], names: Sequence[str]) -> dict[str, int]:
    best = [cell_winners(record, METRICS["ece"]) for record in done]
    return {name: sum(name in one for one in best) for name in names}


def _overview(records: Sequence[Record], names: Sequence[str]) -> str:
    if not names:
        return ""
    done = [record for record in records if record.status == "done"]
    means = [mean_metric(records, name, "ece") for name in names]
    notes = {mean.over for mean in means}
    over = notes.pop() if len(notes) == 1 else "over the cells each was run in"
    marks = (
        "A dot is one cell" if len(done) <= MAX_DOTS else "The box is half of the cells, the line nine of ten"
    )
    lede = tag("p", f"Mean ECE {escape(over)}. {marks}, the bar their mean.", class_="lede")
    return lede + strip(records, names, METRICS["ece"], _wins(done, names))


def _results(records: Sequence[Record], groups: Sequence[Group], names: Sequence[str]) -> str:
    if not names:
        return ""
    lede = tag(
        "p", "Means over the cells of each row; the best is bold. Click a head to sort.", class_="lede"
    )
    items = [(metric.title, _result_table(groups, names, metric)) for metric in metrics_of(records)]
    return lede + tabs("metrics", items)


def _result_table(groups: Sequence[Group], names: Sequence[str], metric: Metric) -> str:
    heads = [*identity_heads(groups), ("Cells", False), ("Accuracy", False)]
    heads += [(calibrator_name(name), False) for name in names]
    rows = []
    for group in groups:
        accuracy = mean_accuracy(group.records).value
        done, total = len(group.done), len(group.records)
        count = cell(f"{done}/{total}", done, class_="plus" if done < total else None)
        cells = [*identity_cells(group, groups), count, cell(METRICS["ece"].text(accuracy), accuracy)]
        for name, (mean, win) in group.means(names, metric).items():
            cells.append(mean_cell(mean, metric, done=done, win=win, own=name == "sicl"))
        rows.append(tag("tr", "".join(cells)))
    unit = " in %" if metric.percent else ""
    better = "higher" if metric.higher else "lower"
    note = tag("p", escape(f"{metric.title}{unit}: {metric.help}; {better} is better."), class_="soft")
    return note + tag("div", sortable(heads, rows), class_="wide scroll" if len(rows) > LONG else "wide")


def _paper(groups: Sequence[Group]) -> str:
    rows = []
    for row in compare_with_paper(groups):
        difference = row.ours - row.paper
        better = (difference > 0) == (row.calibrator == "accuracy")
        sign = f"{difference:+.1f}".replace("-", "\N{MINUS SIGN}")
        name = "Accuracy" if row.calibrator == "accuracy" else calibrator_name(row.calibrator)
        cells = [
            *identity_cells(row.group, groups),
            left(name),
            cell(f"{row.ours:.1f}", row.ours),
            cell(f"{row.paper:.1f}", row.paper),
            cell(tag("span", sign, class_="minus" if better else "plus"), difference),
            left(row.note),
        ]
        rows.append(tag("tr", "".join(cells)))
    if not rows:
        return ""
    lede = "Cumulative ECE and accuracy in %, ours, the paper's (Nam et al., WACV 2026) and the difference."
    heads = [*identity_heads(groups), ("Calibrator", True), ("Ours", False), ("Paper", False)]
    heads += [("Difference", False), ("Over", True)]
    return tag("p", lede, class_="lede") + tag("div", sortable(heads, rows), class_="wide scroll")


def _failed(records: Sequence[Record]) -> str:
    failed = [record for record in records if record.status == "failed"]
    rows = "".join(
        tag("dt", escape(record.label)) + tag("dd", escape(record.error or "")) for record in failed
    )
    return tag("dl", rows) if failed else ""


Column = tuple[str, Callable[[Record], int | None]]
COLUMNS: tuple[Column, ...] = (("Severity", lambda r: r.severity), ("Seed", lambda r: r.seed))


def cells_table(records: Sequence[Record], groups: Sequence[Group], names: Sequence[str]) -> str:
    """Return the table; severity and seed are columns only where they differ."""
    columns = [item for item in COLUMNS if len({item[1](record) for record in records} - {None}) > 1]
    heads = [*identity_heads(groups), ("Corruption", True), *((title, False) for title, _ in columns)]
    heads += [("Accuracy", False), *((calibrator_name(name), False) for name in names), ("Winner", True)]
    rows = [_row(group, groups, record, names, columns) for group in groups for record in group.records]
    box = (
        '<input class="filter" type="search" placeholder="Filter: tent fog …" '
        'aria-label="Filter cells" data-table="all-cells">'
    )
    lede = tag(
        "p", f"ECE in % of all {len(records)} cells, and the calibrator with the lowest.", class_="lede"
    )
    return lede + box + tag("div", sortable(heads, rows, id="all-cells"), class_="wide scroll")


def _row(
    group: Group, groups: Sequence[Group], record: Record, names: Sequence[str], columns: Sequence[Column]
) -> str:
    metric = METRICS["ece"]
    best = cell_winners(record, metric)
    values = {name: record.calibrators.get(name, {}).get("ece") for name in names}
    corruption = domain_name(record.corruption) if record.corruption else "several"
    winner = _names([name for name in names if name in best])
    cells = [
        *identity_cells(group, groups),
        left(corruption),
        *(cell(MISSING if (v := value(record)) is None else str(v), v) for _, value in columns),
        cell(metric.text(record.accuracy), record.accuracy),
        *(
            cell(metric.text(values[name]), values[name], class_="win" if name in best else None)
            for name in names
        ),
        left(winner if record.status == "done" else "failed"),
    ]
    return tag("tr", "".join(cells), class_="failed" if record.status == "failed" else None)
