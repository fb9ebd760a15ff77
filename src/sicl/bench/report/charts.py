"""The charts of a report, as inline SVG: reliability, lines over time, risk against coverage."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sicl.bench.tables.names import calibrator_name, short_domain
from sicl.bench.tables.pool import Bins, Curve
from sicl.bench.tables.svg import Frame, Scale, nice_top, number, polyline, spread_labels, tag, text, ticks


@dataclass(frozen=True, slots=True)
class Line:
    """A named line; `key` is the calibrator (or "accuracy") that decides its colour."""

    key: str
    name: str
    curve: Curve


def percent(value: float) -> str:
    """Return a share as a whole percentage."""
    return f"{100 * value:.0f}"


def thousands(value: float) -> str:
    """Return a number of samples the short way: 2500 is 2.5k."""
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def colour(calibrator: str) -> str:
    """Return the class that carries a calibrator's colour."""
    return "c-" + re.sub(r"[^a-zA-Z0-9_-]", "-", calibrator)


def reliability_diagram(bins: Bins, calibrator: str) -> str:
    """Return accuracy against confidence, the gap to the diagonal, and how samples spread below."""
    frame = Frame(180, 208, Scale(0, 1, 24, 174), Scale(0, 1, 152, 6))
    zero = frame.y(0)
    parts = [frame.axes((), (0, 0.25, 0.5, 0.75, 1), percent, percent)]
    biggest = bins.count.max()
    for i, count in enumerate(bins.count):
        if count == 0:
            continue
        left, right = frame.x(bins.lower[i]) + 0.6, frame.x(bins.upper[i]) - 0.6
        accuracy, confidence = frame.y(bins.accuracy[i]), frame.y(bins.confidence[i])
        tip = (
            f"confidence {100 * bins.confidence[i]:.1f} %, accuracy {100 * bins.accuracy[i]:.1f} %, "
            f"{100 * count / bins.count.sum():.1f} % of samples"
        )
        # A bin with few samples is drawn faintly: its accuracy is mostly chance.
        strength = 0.35 + 0.65 * min(1.0, float(count / biggest) * 4)
        bar = tag("rect", x=left, y=accuracy, width=right - left, height=zero - accuracy, class_="bar")
        kind = "over" if confidence < accuracy else "under"
        gap = tag(
            "rect",
            x=left,
            y=min(accuracy, confidence),
            width=right - left,
            height=abs(accuracy - confidence),
            class_=f"gap {kind}",
        )
        rise = 30 * float(count / biggest)
        share = tag("rect", x=left, y=202 - rise, width=right - left, height=rise, class_="share")
        parts.append(tag("g", bar + gap, opacity=f"{strength:.2f}", data_t=tip) + share)
    diagonal = f"M{number(frame.x(0))} {number(zero)}L{number(frame.x(1))} {number(frame.y(1))}"
    parts.append(tag("path", d=diagonal, class_="diagonal"))
    parts.append(tag("path", d="M24 202H174", class_="axis"))
    parts += [text(percent(v), frame.x(v), 164, class_="tick mid") for v in (0, 0.5)]
    parts.append(text("100", 174, 164, class_="tick end"))
    name = calibrator_name(calibrator)
    label = f"Reliability diagram of {name}: ECE {100 * bins.ece:.1f} %"
    return frame.svg("".join(parts), label, class_=f"reliability {colour(calibrator)}")


def line_chart(
    lines: Sequence[Line],
    *,
    label: str,
    x_title: str,
    y_title: str,
    x_text: Callable[[float], str],
    segments: Sequence[tuple[str, int]] = (),
    from_zero: bool = True,
) -> str:
    """Return lines over a common x, each named at its right end."""
    x_low, x_high = float(lines[0].curve.x[0]), float(lines[0].curve.x[-1])
    values = [float(value) for line in lines for value in line.curve.y]
    low = 0.0 if from_zero else max(0.0, 0.1 * int(10 * min(values)))
    high = nice_top(max(values)) if from_zero else 1.0
    x_low = 0.0 if x_text is percent else x_low
    frame = Frame(410, 282, Scale(x_low, x_high or 1.0, 28, 302), Scale(low, high, 244, 24))
    if x_high <= x_low:
        frame = replace(frame, x=Scale(x_low - 1, x_low + 1, 28, 302))
    x_ticks = [v for v in ticks(frame.x.low, frame.x.high, 5) if frame.x.low <= v]
    parts = [_bands(frame, segments), frame.axes(x_ticks, ticks(low, high), x_text, percent)]
    # SICL is drawn last, so that no other line hides it.
    for line in sorted(lines, key=lambda line: line.key == "sicl"):
        parts.append(
            polyline(frame, line.curve.x, line.curve.y, class_=f"line {colour(line.key)}", data_n=line.name)
        )
    parts.append(_end_labels(frame, lines))
    parts.append(text(y_title, 0, 11, class_="title"))
    parts.append(text(x_title, 302, 277, class_="title end"))
    return frame.svg(
        "".join(parts),
        label,
        class_="lines",
        data_x=frame.x.data,
        data_y=frame.y.data,
        data_f="share" if x_text is percent else "count",
        data_title=x_title,
    )


def _end_labels(frame: Frame, lines: Sequence[Line]) -> str:
    ends = [frame.y(float(line.curve.y[-1])) for line in lines]
    places = spread_labels(ends, 13, frame.y.stop + 4, frame.y.start - 2)
    marks = []
    for line, end, place in zip(lines, ends, places):
        x = frame.x(float(line.curve.x[-1]))
        lead = f"M{number(x + 2)} {number(end)}L{number(x + 9)} {number(place)}"
        marks.append(
            tag(
                "g",
                tag("path", d=lead, class_="lead") + text(line.name, x + 12, place + 3.5, class_="name"),
                class_=colour(line.key),
            )
        )
    return "".join(marks)


def _bands(frame: Frame, segments: Sequence[tuple[str, int]]) -> str:
    """Return shaded stretches of the stream, named where they are wide enough."""
    if len(segments) < 2:
        return ""
    marks, start = [], frame.x.start
    for i, (domain, end) in enumerate(segments):
        stop = min(max(frame.x(end), frame.x.start), frame.x.stop)
        width = stop - start
        if i % 2 == 0 and width > 0:
            marks.append(
                tag(
                    "rect",
                    x=start,
                    y=frame.y.stop,
                    width=width,
                    height=frame.y.start - frame.y.stop,
                    class_="band",
                )
            )
        name = short_domain(domain)
        if width > 5.4 * len(name) + 4:
            marks.append(text(name, start + width / 2, frame.y.start - 5, class_="tick mid"))
        start = max(start, stop)
    return "".join(marks)
