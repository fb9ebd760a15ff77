"""Draw a sheet: lines where its rows are numbers, bars where they are a few names, dots where they are many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from html import escape

from sicl.bench.tables.sheets import Sheet, number
from sicl.bench.tables.svg import Scale, nice_top, tag, text, ticks

WIDTH, HEIGHT = 720, 360
FEW = 6
"""Rows up to here are bars; more are lines of dots, one below the other."""
ROW, LETTER = 17, 6.1
LEFT, RIGHT, TOP, BOTTOM = 52, 700, 56, 290
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e")
STYLE = "text{font:11px sans-serif;fill:#333}.title{font-weight:bold;font-size:13px}.grid{stroke:#ddd}"


def chart(sheet: Sheet) -> str:
    """Return a sheet as a standalone SVG file."""
    sheet = _drawn(sheet)
    values = [value for _, row in sheet.rows for value in row if value is not None]
    low, high = min((*values, 0.0)), nice_top(max((*values, 1e-9)), floor=1e-9)
    if not is_numeric(sheet) and len(sheet.rows) > FEW:
        return _dots(sheet, low, high)
    scale = Scale(low, high, BOTTOM, TOP)
    marks = _lines(sheet, scale) if is_numeric(sheet) else _bars(sheet, scale)
    return _frame(sheet, HEIGHT, [*_grid(scale), *marks])


def _drawn(sheet: Sheet) -> Sheet:
    """Return a sheet with only the columns that are drawn."""
    if not sheet.drawn:
        return sheet
    chosen = [i for i, name in enumerate(sheet.columns) if name in sheet.drawn]
    rows = tuple((name, tuple(row[i] for i in chosen)) for name, row in sheet.rows)
    return replace(sheet, columns=tuple(sheet.columns[i] for i in chosen), rows=rows)


def _frame(sheet: Sheet, height: float, marks: list[str]) -> str:
    parts = [
        tag("style", STYLE),
        tag("rect", width=WIDTH, height=height, fill="#fff"),
        text(sheet.title, 16, 20, class_="title"),
        *_legend(sheet.columns),
        *marks,
        text(sheet.note, 16, height - 8),
    ]
    return tag("svg", "".join(parts), xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {height:g}")


def _dots(sheet: Sheet, low: float, high: float) -> str:
    """Return one line a row, its name before it, a dot for each column."""
    left = min(LETTER * max(len(name) for name, _ in sheet.rows) + 24, 0.6 * WIDTH)
    bottom = TOP + ROW * len(sheet.rows)
    across = Scale(low, high, left, RIGHT)
    marks = []
    for value in ticks(across.low, across.high):
        x = across(value)
        marks.append(tag("line", x1=x, x2=x, y1=TOP, y2=bottom, class_="grid"))
        marks.append(text(_tick(value), x, bottom + 14, text_anchor="middle"))
    for n, (name, row) in enumerate(sheet.rows):
        y = TOP + ROW * (n + 0.5)
        marks.append(text(name, left - 10, y + 4, text_anchor="end"))
        known = [(i, value) for i, value in enumerate(row) if value is not None]
        if known:
            ends = [across(value) for _, value in known]
            marks.append(tag("line", x1=min(ends), x2=max(ends), y1=y, y2=y, class_="grid"))
        for i, value in known:
            tip = tag("title", escape(f"{sheet.columns[i]}, {name}: {number(value, sheet.digits)}"))
            marks.append(tag("circle", tip, cx=across(value), cy=y, r=4, fill=_colour(i)))
    return _frame(sheet, bottom + 44, marks)


def _tick(value: float) -> str:
    return f"{round(value, 6):g}"


def is_numeric(sheet: Sheet) -> bool:
    """Say whether the rows are numbers, so that a line can be drawn through them."""
    try:
        return len({float(name) for name, _ in sheet.rows}) > 1
    except ValueError:
        return False


def _grid(scale: Scale) -> Iterator[str]:
    for value in ticks(scale.low, scale.high):
        y = scale(value)
        yield tag("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="grid")
        yield text(_tick(value), LEFT - 6, y + 4, text_anchor="end")


def _legend(columns: tuple[str, ...]) -> Iterator[str]:
    x = 16.0
    for i, name in enumerate(columns):
        yield tag("rect", x=x, y=30, width=10, height=10, fill=_colour(i))
        yield text(name, x + 14, 39)
        x += 26 + 6.2 * len(name)


def _lines(sheet: Sheet, scale: Scale) -> Iterator[str]:
    places = [float(name) for name, _ in sheet.rows]
    across = Scale(min(places), max(places), LEFT + 10, RIGHT - 10)
    for i in range(len(sheet.columns)):
        known = [(across(place), row[i]) for place, (_, row) in zip(places, sheet.rows)]
        points = " ".join(f"{x:.1f},{scale(value):.1f}" for x, value in known if value is not None)
        yield tag("polyline", points=points, fill="none", stroke=_colour(i), stroke_width="2")
    for place in ticks(across.low, across.high, 8):
        yield text(_tick(place), across(place), BOTTOM + 16, text_anchor="middle")
    yield text(sheet.corner, RIGHT, BOTTOM + 32, text_anchor="end")


def _bars(sheet: Sheet, scale: Scale) -> Iterator[str]:
    room = (RIGHT - LEFT) / len(sheet.rows)
    width = 0.8 * room / max(len(sheet.columns), 1)
    for n, (name, row) in enumerate(sheet.rows):
        start = LEFT + n * room + 0.1 * room
        for i, value in enumerate(row):
            if value is None:
                continue
            top, bottom = sorted((scale(value), scale(0.0)))
            tip = tag("title", escape(f"{sheet.columns[i]}, {name}: {number(value, sheet.digits)}"))
            yield tag(
                "rect",
                tip,
                x=start + i * width,
                y=top,
                width=0.9 * width,
                height=bottom - top,
                fill=_colour(i),
            )
        yield text(name, start + 0.4 * room, BOTTOM + 16, text_anchor="middle")


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]
