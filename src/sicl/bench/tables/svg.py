"""The few SVG and HTML primitives the charts are drawn with, and one colour for each name in all of them."""

from __future__ import annotations

import colorsys
import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from html import escape

from sicl.bench.tables.names import COLOURS
from sicl.bench.tables.pool import Array


def colour_of(name: str) -> str:
    """Return the colour of a calibrator, method or part; an unknown name has one of its own, always the same."""
    if name in COLOURS:
        return COLOURS[name]
    hue = zlib.crc32(name.encode()) / 2**32
    red, green, blue = colorsys.hls_to_rgb(hue, 0.48, 0.5)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def number(value: float) -> str:
    """Return a coordinate with at most one decimal, as short as it goes."""
    return f"{value:.1f}".removesuffix(".0")


def tag(element: str, content: str = "", **attributes: str | float | None) -> str:
    """Return an element; `class_` becomes `class`, other underscores become hyphens, None is left out."""
    parts = [element]
    for key, value in attributes.items():
        if value is not None:
            text = value if isinstance(value, str) else number(value)
            parts.append(f'{key.rstrip("_").replace("_", "-")}="{escape(text)}"')
    return f"<{' '.join(parts)}>{content}</{element}>"


def text(content: str, x: float, y: float, **attributes: str | float | None) -> str:
    """Return a text element with escaped content."""
    return tag("text", escape(content), x=x, y=y, **attributes)


@dataclass(frozen=True, slots=True)
class Scale:
    """A linear map from data to pixels."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        """Return the pixel of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)

    @property
    def data(self) -> str:
        """Return the map as text, for the script that reads values back off the chart."""
        return " ".join(f"{value:g}" for value in (self.low, self.high, self.start, self.stop))


def ticks(low: float, high: float, wished: int = 5) -> list[float]:
    """Return round values from `low` to `high`, about as many as wished."""
    step = 10 ** math.floor(math.log10((high - low) / wished))
    step *= min((1, 2, 5, 10), key=lambda factor: abs((high - low) / (step * factor) - wished))
    first = math.ceil(low / step - 1e-9)
    return [round(i * step, 10) for i in range(first, math.floor(high / step + 1e-9) + 1)]


def nice_top(value: float, floor: float = 0.05) -> float:
    """Return the round number at or above `value` at which an axis may end."""
    top = max(value, floor) * 1.02
    step = ticks(0, top)[1]
    return min(math.ceil(top / step) * step, 1.0) if top <= 1 else math.ceil(top / step) * step


@dataclass(frozen=True, slots=True)
class Frame:
    """The plotting area of a chart and its two scales."""

    width: float
    height: float
    x: Scale
    y: Scale

    def axes(
        self,
        x_ticks: Iterable[float],
        y_ticks: Iterable[float],
        x_text: Callable[[float], str],
        y_text: Callable[[float], str],
    ) -> str:
        """Return gridlines and tick labels."""
        left, right, bottom = self.x.start, self.x.stop, self.y.start
        rows = [f"M{number(left)} {number(self.y(v))}H{number(right)}" for v in y_ticks]
        marks = [tag("path", d="".join(rows), class_="grid")]
        marks.append(tag("path", d=f"M{number(left)} {number(bottom)}H{number(right)}", class_="axis"))
        marks += [text(y_text(v), left - 5, self.y(v) + 3, class_="tick end") for v in y_ticks]
        for value in x_ticks:
            place = "end" if self.x(value) > right - 4 and right > self.width - 14 else "mid"
            marks.append(text(x_text(value), self.x(value), bottom + 13, class_=f"tick {place}"))
        return "".join(marks)

    def svg(self, content: str, label: str, **attributes: str | float | None) -> str:
        """Return the whole chart; it grows and shrinks with its column."""
        size = f"0 0 {number(self.width)} {number(self.height)}"
        return tag("svg", content, viewBox=size, role="img", aria_label=label, **attributes)


def polyline(frame: Frame, x: Array, y: Array, **attributes: str | float | None) -> str:
    """Return a line through the points."""
    points = " ".join(f"{number(frame.x(float(a)))},{number(frame.y(float(b)))}" for a, b in zip(x, y))
    return tag("polyline", "", points=points, **attributes)


def spread_labels(places: list[float], gap: float, low: float, high: float) -> list[float]:
    """Return label positions at least `gap` apart, within [low, high], each near its own place."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = [places[i] for i in order]
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + gap)
    if moved and moved[-1] > high:
        moved[-1] = high
        for i in range(len(moved) - 2, -1, -1):
            moved[i] = min(moved[i], moved[i + 1] - gap)
    moved = (
        [max(place, low + i * gap) for i, place in enumerate(moved)] if moved and moved[0] < low else moved
    )
    result = [0.0] * len(places)
    for rank, i in enumerate(order):
        result[i] = moved[rank]
    return result
