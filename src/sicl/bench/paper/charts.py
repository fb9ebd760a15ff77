"""Draw a sheet: lines where its rows are numbers, grouped bars where they are names."""

from __future__ import annotations

from collections.abc import Iterator

from sicl.bench.paper.sheets import Sheet, number
from sicl.bench.report.svg import Scale, nice_top, tag, text, ticks

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 52, 700, 56, 290
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e")
STYLE = "text{font:11px sans-serif;fill:#333}.title{font-weight:bold;font-size:13px}.grid{stroke:#ddd}"


def chart(sheet: Sheet) -> str:
    """Return a sheet as a standalone SVG file."""
    values = [value for _, row in sheet.rows for value in row if value is not None]
    low, high = min(0.0, *values, 0.0), nice_top(max((*values, 1e-9)), floor=1e-9)
    scale = Scale(low, high, BOTTOM, TOP)
    parts = [
        tag("style", STYLE),
        tag("rect", width=WIDTH, height=HEIGHT, fill="#fff"),
        text(sheet.title, LEFT, 20, class_="title"),
        *_grid(scale),
        *_legend(sheet.columns),
        *(_lines(sheet, scale) if _is_numeric(sheet) else _bars(sheet, scale)),
        text(sheet.note, LEFT, HEIGHT - 8),
    ]
    return tag("svg", "".join(parts), xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}")


def _is_numeric(sheet: Sheet) -> bool:
    try:
        return len({float(name) for name, _ in sheet.rows}) > 1
    except ValueError:
        return False


def _grid(scale: Scale) -> Iterator[str]:
    for value in ticks(scale.low, scale.high):
        y = scale(value)
        yield tag("line", x1=LEFT, x2=RIGHT, y1=y, y2=y, class_="grid")
        yield text(number(value), LEFT - 6, y + 4, text_anchor="end")


def _legend(columns: tuple[str, ...]) -> Iterator[str]:
    x = float(LEFT)
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
        yield text(number(place), across(place), BOTTOM + 16, text_anchor="middle")
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
            tip = tag("title", f"{sheet.columns[i]}, {_escaped(name)}: {number(value)}")
            yield tag(
                "rect",
                tip,
                x=start + i * width,
                y=top,
                width=0.9 * width,
                height=bottom - top,
                fill=_colour(i),
            )
        place = (
            f"translate({start + 0.4 * room:.1f},{BOTTOM + 14}) rotate({-30 if len(sheet.rows) > 4 else 0})"
        )
        anchor = "end" if len(sheet.rows) > 4 else "middle"
        yield tag("g", text(name, 0, 0, text_anchor=anchor), transform=place)


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _escaped(name: str) -> str:
    return name.replace("&", "&amp;").replace("<", "&lt;")
