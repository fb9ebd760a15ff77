"""Panels that a figure is composed of: bars, lines, dots, a scatter, reliability, a stream; as one SVG file."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from sicl.bench.tables.names import legend_name, short_domain
from sicl.bench.tables.sheets import Sheet, number
from sicl.bench.tables.svg import Scale, colour_of, nice_top, tag, text, ticks

WIDTH, HALF, PLOT, GAP = 780, 380, 190, 20
LEFT, RIGHT, HEAD = 40, 8, 26
LETTER = 6.8
"""Rough width of a letter of 11 px, for what must not overlap."""
STYLE = (
    # Under a class: inside a page the rules must not reach its other drawings.
    ".plot text{font:11px system-ui,sans-serif;fill:#333}.plot .title{font-weight:bold;font-size:13px}"
    ".plot .head{font-weight:bold}.plot .grid{stroke:#e4e4e4}.plot .axis{stroke:#777;opacity:1}"
    ".plot .soft{fill:#777}"
)
Curve = Sequence[tuple[float, float]]
SMALL = 0.1
"""What logarithmic axes begin with at the earliest."""
DECADES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True, slots=True)
class Plot:
    """One plot, drawn from its own top left corner."""

    width: float
    height: float
    marks: str

    def svg(self) -> str:
        """Return the plot as a file of its own, or as a part of a page; it shrinks where there is less room."""
        return _sheet(self.width, self.height + 6, self.marks)


@dataclass(frozen=True, slots=True)
class Drawing:
    """Panels below a title: one SVG file, or parts of a page that flow with its width.

    Args:
        title: what it shows.
        panels: its plots.
        note: what the reader must know.
    """

    title: str
    panels: Sequence[Plot]
    note: str = ""

    def svg(self) -> str:
        """Return panels in rows below the title, as a standalone SVG file."""
        placed, x, y, tallest = [], 0.0, 30.0, 0.0
        for panel in self.panels:
            if x and x + panel.width > WIDTH:
                x, y, tallest = 0.0, y + tallest + GAP, 0.0
            placed.append(tag("g", panel.marks, transform=f"translate({x:g} {y:g})"))
            x, tallest = x + panel.width + GAP, max(tallest, panel.height)
        height = y + tallest + (24 if self.note else 8)
        note = text(self.note, 4, height - 8, class_="soft") if self.note else ""
        return _sheet(WIDTH, height, text(self.title, 4, 16, class_="title") + "".join(placed) + note)

    def html(self) -> str:
        """Return the panels as parts of a page: beside each other where there is room, else below."""
        parts = [
            tag("div", panel.svg(), class_="wide" if panel.width > HALF else None) for panel in self.panels
        ]
        note = tag("p", escape(self.note), class_="soft") if self.note else ""
        return tag("h3", escape(self.title)) + tag("div", "".join(parts), class_="panels") + note


def _sheet(width: float, height: float, marks: str) -> str:
    """Return marks on white paper of a size."""
    paper = tag("style", STYLE) + tag("rect", width=width, height=height, fill="#fff")
    size = {"viewBox": f"0 0 {width:g} {height:g}", "width": f"{width:g}", "height": f"{height:g}"}
    return tag("svg", paper + marks, xmlns="http://www.w3.org/2000/svg", class_="plot", **size)


def bars(title: str, sheet: Sheet, *, width: float = HALF, unit: str = "%") -> Plot:
    """Return a group of bars for each row of a sheet, one for each column."""
    scale = _scale([value for _, row in sheet.rows for value in row if value is not None])
    room = (width - LEFT - RIGHT) / max(len(sheet.rows), 1)
    size = 0.84 * room / max(len(sheet.columns), 1)
    marks = [*_rows(scale, width)]
    for n, (name, row) in enumerate(sheet.rows):
        start = LEFT + (n + 0.08) * room
        for i, value in enumerate(row):
            if value is None:
                continue
            top, bottom = sorted((scale(value), scale(0.0)))
            tip = tag("title", escape(f"{sheet.columns[i]}, {name}: {number(value, sheet.digits)} {unit}"))
            place = {"x": start + i * size, "y": top, "width": max(0.9 * size, 1), "height": bottom - top}
            marks.append(tag("rect", tip, fill=colour_of(sheet.columns[i]), **place))
    labels = [legend_name(name) for name, _ in sheet.rows]
    under, depth = _names(labels, [LEFT + (n + 0.5) * room for n in range(len(labels))], room)
    legend, more = _legend(sheet.columns, width, HEAD + PLOT + depth)
    return _panel(title, width, HEAD + PLOT + depth + more, [*marks, *under, *legend])


def lines(
    title: str,
    curves: Mapping[str, Curve],
    *,
    x_title: str,
    width: float = HALF,
    changes: Sequence[tuple[str, float]] = (),
) -> Plot:
    """Return a line for each curve.

    Args:
        title: the panel's heading.
        curves: points by name; the name decides the colour.
        x_title: what the x axis is.
        width: of the panel.
        changes: (name, end) of the stretches of a stream, marked where one gives way to the next.
    """
    points = [point for curve in curves.values() for point in curve]
    places = sorted({x for x, _ in points}) or [0.0]
    across = Scale(places[0], max(places[-1], places[0] + 1e-9), LEFT + 8, width - RIGHT - 8)
    scale = _scale([y for _, y in points])
    marks = [*_changes(changes, across), *_rows(scale, width)]
    for name, curve in curves.items():
        path = " ".join(f"{across(x):.1f},{scale(y):.1f}" for x, y in curve)
        marks.append(tag("polyline", points=path, fill="none", stroke=colour_of(name), stroke_width="2"))
        if len(curve) <= 8:
            marks += [tag("circle", cx=across(x), cy=scale(y), r=3, fill=colour_of(name)) for x, y in curve]
    # A handful of whole numbers (severities, counts of variants) are ticks themselves.
    few = len(places) <= 8 and all(place == int(place) for place in places)
    for place in places if few else ticks(across.low, across.high, 5):
        marks.append(text(f"{round(place, 6):g}", across(place), HEAD + PLOT + 14, text_anchor="middle"))
    marks.append(_caption(x_title, width, HEAD + PLOT + 28))
    legend, more = _legend(tuple(curves), width, HEAD + PLOT + 34)
    return _panel(title, width, HEAD + PLOT + 34 + more, [*marks, *legend])


def sheet_lines(title: str, sheet: Sheet, *, width: float = HALF) -> Plot:
    """Return a line for each column of a sheet whose rows are numbers."""
    curves = {
        column: [(float(name), value) for name, row in sheet.rows if (value := row[i]) is not None]
        for i, column in enumerate(sheet.columns)
    }
    return lines(title, curves, x_title=sheet.corner, width=width)


def dots(title: str, sheet: Sheet, *, width: float = HALF) -> Plot:
    """Return one line for each row, its name before it, a dot for each column; a ring where it ends in "hard"."""
    values = [value for _, row in sheet.rows for value in row if value is not None]
    start = min(LETTER * max((len(legend_name(name)) for name, _ in sheet.rows), default=0) + 14, 0.6 * width)
    across = Scale(min((*values, 0.0)), nice_top(max((*values, 1e-9)), floor=1e-9), start, width - RIGHT - 8)
    bottom = HEAD + 16 * len(sheet.rows)
    marks = []
    for value in ticks(across.low, across.high):
        x = across(value)
        marks.append(tag("line", x1=x, x2=x, y1=HEAD, y2=bottom, class_="grid"))
        marks.append(text(f"{round(value, 6):g}", x, bottom + 14, text_anchor="middle"))
    for n, (name, row) in enumerate(sheet.rows):
        y = HEAD + 16 * (n + 0.5)
        marks.append(text(legend_name(name), start - 8, y + 4, text_anchor="end"))
        known = [(i, value) for i, value in enumerate(row) if value is not None]
        if known:
            ends = [across(value) for _, value in known]
            marks.append(tag("line", x1=min(ends), x2=max(ends), y1=y, y2=y, class_="grid"))
        for i, value in known:
            tip = tag("title", escape(f"{sheet.columns[i]}, {name}: {number(value, sheet.digits)} %"))
            marks.append(tag("circle", tip, cx=across(value), cy=y, **_mark(sheet.columns[i])))
    legend, more = _legend(sheet.columns, width, bottom + 20)
    return _panel(title, width, bottom + 20 + more, [*marks, *legend])


def scatter(title: str, points: Mapping[str, Curve]) -> Plot:
    """Return (printed, ours) by name on logarithmic axes, with the line on which both are equal."""
    width = HALF
    every = [max(value, SMALL) for curve in points.values() for point in curve for value in point]
    low, high = math.log(0.8 * min(every)), math.log(1.25 * max(every))
    plot = HEAD + PLOT + 60
    across, scale = Scale(low, high, LEFT, width - RIGHT), Scale(low, high, plot, HEAD)
    marks = []
    for value in DECADES:
        if low <= math.log(value) <= high:
            x, y = across(math.log(value)), scale(math.log(value))
            marks.append(tag("line", x1=LEFT, x2=width - RIGHT, y1=y, y2=y, class_="grid"))
            marks.append(tag("line", x1=x, x2=x, y1=HEAD, y2=plot, class_="grid"))
            marks.append(text(f"{value:g}", LEFT - 5, y + 4, text_anchor="end"))
            marks.append(text(f"{value:g}", x, plot + 14, text_anchor="middle"))
    marks.append(_diagonal(across, scale))
    for name, curve in points.items():
        for x, y in curve:
            tip = tag("title", escape(f"{legend_name(name)}: printed {x:.1f}, ours {y:.1f}"))
            place = {"cx": across(math.log(max(x, SMALL))), "cy": scale(math.log(max(y, SMALL)))}
            marks.append(tag("circle", tip, r=4, fill=colour_of(name), fill_opacity="0.8", **place))
    marks.append(_caption("ours (up) against printed", width, plot + 28))
    legend, more = _legend(tuple(points), width, plot + 34)
    return _panel(title, width, plot + 34 + more, [*marks, *legend])


def reliability(title: str, sheet: Sheet, ece: float) -> Plot:
    """Return accuracy by confidence as bars, the gap to the diagonal, and the ECE.

    Args:
        title: the panel's heading.
        sheet: rows "lower edge of a bin" with confidence, accuracy (in %) and samples.
        ece: in %.
    """
    width = HALF / 2
    across, scale = Scale(0, 100, 30, width - RIGHT), Scale(0, 100, HEAD + PLOT, HEAD)
    bin_width = (across.stop - across.start) / 15
    marks = []
    for value in (0, 25, 50, 75, 100):
        marks.append(tag("line", x1=30, x2=width - RIGHT, y1=scale(value), y2=scale(value), class_="grid"))
        marks.append(text(str(value), 25, scale(value) + 4, text_anchor="end"))
    for name, (said, right, count) in sheet.rows:
        assert said is not None
        assert right is not None
        x, y = across(100 * float(name)), scale(right)
        tip = tag("title", f"confidence {said:.1f} %, accuracy {right:.1f} %, {count} samples")
        bar = {"x": x + 0.5, "width": bin_width - 1}
        marks.append(tag("rect", tip, y=y, height=scale(0) - y, fill="#4a6fa5", **bar))
        gap = {"y": min(y, scale(said)), "height": abs(y - scale(said))}
        marks.append(tag("rect", "", fill="#d11149", fill_opacity="0.35", **gap, **bar))
    marks.append(_diagonal(across, scale))
    marks.append(text(f"ECE {ece:.1f} %", 36, HEAD + 14, class_="head"))
    marks += [
        text(str(v), across(v), HEAD + PLOT + 14, text_anchor="middle" if v < 100 else "end")
        for v in (0, 50, 100)
    ]
    marks.append(_caption("confidence, %", width, HEAD + PLOT + 28))
    return _panel(title, width, HEAD + PLOT + 34, marks)


def joined(panels: Sequence[Plot]) -> Plot:
    """Return panels that belong together as one, side by side."""
    marks, x = [], 0.0
    for panel in panels:
        marks.append(tag("g", panel.marks, transform=f"translate({x:g} 0)"))
        x += panel.width
    return Plot(x, max(panel.height for panel in panels), "".join(marks))


def stream(title: str, segments: Sequence[tuple[str, int]]) -> Plot:
    """Return which corruption comes when: a row for each, a bar for each of its runs."""
    names = list(dict.fromkeys(name for name, _ in segments))
    across = Scale(0, segments[-1][1], 90, WIDTH - RIGHT - 8)
    bottom = HEAD + 14 * len(names)
    marks, begin = [], 0
    for name, end in segments:
        y = HEAD + 14 * names.index(name)
        place = {"x": across(begin), "y": y + 2, "width": max(across(end) - across(begin), 0.5), "height": 10}
        tip = tag("title", escape(f"{legend_name(name)}: samples {begin} to {end}"))
        marks.append(tag("rect", tip, fill=colour_of(name), **place))
        begin = end
    marks += [
        text(legend_name(name), 84, HEAD + 14 * n + 11, text_anchor="end") for n, name in enumerate(names)
    ]
    for value in ticks(0, segments[-1][1]):
        marks.append(text(f"{value:g}", across(value), bottom + 14, text_anchor="middle"))
    marks.append(_caption("samples", WIDTH, bottom + 28))
    return _panel(title, WIDTH, bottom + 34, marks)


def plot(sheet: Sheet) -> str:
    """Return a sheet as a drawing: lines where its rows are numbers, bars where they are few, else dots."""
    draw = sheet_lines if sheet.numeric else bars if len(sheet.rows) <= 6 else dots
    return Drawing(sheet.title, [draw("", sheet, width=WIDTH)], sheet.note).svg()


def _panel(title: str, width: float, height: float, marks: Sequence[str]) -> Plot:
    return Plot(width, height, text(title, 4, 14, class_="head") + "".join(marks))


def _scale(values: Sequence[float]) -> Scale:
    return Scale(min((*values, 0.0)), nice_top(max((*values, 1e-9)), floor=1e-9), HEAD + PLOT, HEAD)


def _rows(scale: Scale, width: float) -> Iterator[str]:
    for value in ticks(scale.low, scale.high):
        y = scale(value)
        yield tag("line", x1=LEFT, x2=width - RIGHT, y1=y, y2=y, class_="grid")
        yield text(f"{round(value, 6):g}", LEFT - 5, y + 4, text_anchor="end")


def _diagonal(across: Scale, scale: Scale) -> str:
    ends = {"x1": across.start, "y1": scale.start, "x2": across.stop, "y2": scale.stop}
    return tag("line", "", class_="axis", stroke_dasharray="4 3", **ends)


def _caption(content: str, width: float, y: float) -> str:
    return text(content, width - RIGHT, y, text_anchor="end", class_="soft")


def _changes(changes: Sequence[tuple[str, float]], across: Scale) -> Iterator[str]:
    """Mark where a stream's corruption changes, and name the stretches that are wide enough, at the foot."""
    begin = across.low
    for i, (name, end) in enumerate(changes if len(changes) > 1 else ()):
        left, right = across(max(begin, across.low)), across(min(end, across.high))
        begin = end
        if right <= left:
            continue
        if i % 2 == 0:
            yield tag("rect", x=left, y=HEAD, width=right - left, height=PLOT, fill="#f3f4f6")
        written, middle, foot = short_domain(name), (left + right) / 2, HEAD + PLOT - 6
        if right - left > LETTER * len(written):
            yield text(written, middle, foot, text_anchor="middle", class_="soft")
        elif right - left > 9:
            x = middle + 4
            yield text(written, x, foot, class_="soft", transform=f"rotate(-90 {x:g} {foot:g})")


def _names(labels: Sequence[str], places: Sequence[float], room: float) -> tuple[list[str], float]:
    """Return the names under groups, slanted where they would touch each other, and the height they take."""
    longest = LETTER * max(map(len, labels), default=0)
    y = HEAD + PLOT + 14
    if longest < room:
        return [text(name, x, y, text_anchor="middle") for name, x in zip(labels, places)], 22
    marks = [
        text(name, x + 3, y, text_anchor="end", transform=f"rotate(-40 {x + 3:.1f} {y:g})")
        for name, x in zip(labels, places)
    ]
    return marks, 20 + 0.65 * longest


def _mark(name: str) -> dict[str, str | float]:
    colour = colour_of(name.removesuffix(", hard"))
    if name.endswith(", hard"):
        return {"r": 3.2, "fill": "#fff", "stroke": colour, "stroke_width": "1.6"}
    return {"r": 4, "fill": colour}


def _legend(names: Sequence[str], width: float, y: float) -> tuple[list[str], float]:
    """Return the names of the colours in as many rows as they need, and their height."""
    marks, x, row = [], 4.0, 0
    for name in names:
        written = legend_name(name)
        need = 24 + LETTER * len(written)
        if x > 4 and x + need > width:
            x, row = 4.0, row + 1
        if name.endswith(", hard"):
            marks.append(tag("circle", "", cx=x + 5, cy=y + 15 * row + 5, **_mark(name)))
        else:
            marks.append(tag("rect", x=x, y=y + 15 * row, width=10, height=10, fill=colour_of(name)))
        marks.append(text(written, x + 14, y + 15 * row + 9))
        x += need
    return marks, 15.0 * (row + 1) if names else 0.0
