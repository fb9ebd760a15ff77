"""Accuracy against ECE of adaptation methods and calibrators: tables, and a figure with one dot for each pair.

A table and a panel for each (data set, model, stream); means over its cells, in %. Costs are for 64 images, in
milliseconds: "adapting" is the method's step, and each calibrator's own comes on top (records of earlier versions have
the whole run only).

    python results/methods.py results/methods-demo.jsonl.xz [MORE FILES OR FOLDERS] [--out docs/images/methods.svg]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import mean

from sicl.bench.run.results import load_results
from sicl.bench.run.schema import Record
from sicl.bench.tables.names import (
    METHODS,
    calibrator_name,
    dataset_name,
    method_name,
    model_name,
    stream_name,
)
from sicl.bench.tables.svg import Scale, nice_top, spread_labels, tag, text, ticks
from sicl.errors import SiclError

WIDTH, HEIGHT = 440, 310
LEFT, RIGHT, TOP, BOTTOM = 44, 330, 40, 264
COLOURS = {"softmax": "#9aa0a6", "pseudocal": "#efb118", "sicl": "#4269d0"}
OTHERS = ("#ff725c", "#6cc5b0", "#a463f2", "#9c6b4e")
STYLE = "text{font:11px sans-serif;fill:#333}.title{font-weight:bold;font-size:12px}.grid{stroke:#ddd}"

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Dot:
    """One method under one calibrator: means over `cells` of the `total` cells that were run, in %."""

    method: str
    calibrator: str
    accuracy: float
    ece: float
    auroc: float
    cells: int
    total: int
    adapting: float | None
    calibrating: float | None
    whole: float


def panels(records: Sequence[Record]) -> dict[Key, list[Dot]]:
    """Return the dots of each data set, model and stream."""
    groups: dict[Key, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        groups[record.dataset, record.model, record.stream][record.method].append(record)
    made = {
        key: [dot for name in sorted(methods, key=_rank) for dot in _dots(name, methods[name])]
        for key, methods in groups.items()
    }
    return {key: dots for key, dots in made.items() if dots}


def _rank(method: str) -> tuple[int, str]:
    known = list(METHODS)
    return known.index(method) if method in known else len(known), method


def _dots(method: str, records: Sequence[Record]) -> list[Dot]:
    names = dict.fromkeys(name for record in records for name in record.spec.get("calibrators", ()))
    asked = {name: [r for r in records if name in r.spec.get("calibrators", ())] for name in names}
    return [dot for name, cells in asked.items() if (dot := _dot(method, name, cells)) is not None]


def _dot(method: str, name: str, asked: Sequence[Record]) -> Dot | None:
    done = [record for record in asked if record.status == "done"]
    rows = [record.calibrators[name] for record in done]
    auroc = [row["auroc"] for row in rows if row["auroc"] is not None]
    if not rows:
        return None
    return Dot(
        method=method,
        calibrator=name,
        accuracy=100 * mean(row["accuracy"] for row in rows),
        ece=100 * mean(row["ece"] for row in rows),
        auroc=100 * mean(auroc) if auroc else float("nan"),
        cells=len(rows),
        total=len(asked),
        adapting=_milliseconds(done, lambda record: record.timing.get("adapt_s")),
        calibrating=_milliseconds(done, lambda record: record.timing.get("calibrate_s", {}).get(name)),
        whole=_milliseconds(done, lambda record: record.timing.get("run_s")) or 0.0,
    )


def _milliseconds(records: Sequence[Record], seconds: Callable[[Record], float | None]) -> float | None:
    """Return the time for 64 images, or None where a record does not tell it."""
    found = [value for record in records if (value := seconds(record)) is not None]
    return 64e3 * sum(found) / sum(r.n + r.n_ood for r in records) if len(found) == len(records) else None


def tables(found: dict[Key, list[Dot]]) -> str:
    """Return a Markdown table for each panel: a row for each method, ECE (AUROC) for each calibrator."""
    return "\n\n".join(f"**{_title(key)}**\n\n{_table(dots)}" for key, dots in found.items())


def _table(dots: Sequence[Dot]) -> str:
    names = list(dict.fromkeys(dot.calibrator for dot in dots))
    timed = [name for name in names if name != "softmax"]
    head = ["method", "cells", "accuracy", *(f"{calibrator_name(name)}: ECE (AUROC)" for name in names)]
    head += ["adapting, ms", *(f"+ {calibrator_name(name)}, ms" for name in timed)]
    lines = [head, ["---"] * len(head)]
    for method in dict.fromkeys(dot.method for dot in dots):
        by_name = {dot.calibrator: dot for dot in dots if dot.method == method}
        least = min(dot.ece for dot in by_name.values())
        first = next(iter(by_name.values()))
        over = f"{first.cells} of {first.total}" if first.cells < first.total else f"{first.cells}"
        cost = _number(first.adapting) if first.adapting is not None else f"{first.whole:.0f} in all"
        own = [_number(by_name[name].calibrating if name in by_name else None) for name in timed]
        said = [_cell(by_name.get(name), least) for name in names]
        lines.append([method_name(method), over, f"{first.accuracy:.1f}", *said, cost, *own])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float | None) -> str:
    return "\N{EN DASH}" if value is None else f"{value:.0f}"


def _cell(dot: Dot | None, least: float) -> str:
    if dot is None:
        return "\N{EN DASH}"
    said = f"{dot.ece:.1f} ({dot.auroc:.1f})"
    return f"**{said}**" if dot.ece == least else said


def _title(key: Key) -> str:
    dataset, model, stream = key
    what = dataset_name(dataset) if dataset == model else f"{dataset_name(dataset)}, {model_name(model)}"
    return f"{what}, {stream_name(stream).lower()}"


def figure(found: dict[Key, list[Dot]]) -> str:
    """Return the panels as one standalone SVG file, one below the other: it is as wide as a phone."""
    names = list(dict.fromkeys(dot.calibrator for dots in found.values() for dot in dots))
    free = iter(OTHERS * len(names))
    colours = {name: COLOURS.get(name) or next(free) for name in names}
    height = HEIGHT * len(found) + 24
    parts = [tag("style", STYLE), tag("rect", width=WIDTH, height=height, fill="#fff")]
    x = 16.0
    for name, colour in colours.items():
        label = calibrator_name(name)
        parts += [tag("circle", cx=x, cy=12, r=4, fill=colour), text(label, x + 8, 16)]
        x += 34 + 6.5 * len(label)
    for i, (key, dots) in enumerate(found.items()):
        parts.append(tag("g", _panel(key, dots, colours), transform=f"translate(0 {24 + HEIGHT * i})"))
    size = {"width": WIDTH, "height": height, "viewBox": f"0 0 {WIDTH} {height}"}
    return tag("svg", "".join(parts), xmlns="http://www.w3.org/2000/svg", **size)


def _panel(key: Key, dots: Sequence[Dot], colours: dict[str, str]) -> str:
    low, high = min(dot.accuracy for dot in dots), max(dot.accuracy for dot in dots)
    room = 0.06 * (high - low + 1)
    across = Scale(low - room, high + room, LEFT, RIGHT)
    down = Scale(0.0, nice_top(max(dot.ece for dot in dots), floor=5.0), BOTTOM, TOP)
    parts = [text(_title(key), 12, 18, class_="title"), text("ECE, %", 12, TOP - 8)]
    for value in ticks(down.low, down.high):
        parts.append(tag("line", x1=LEFT, x2=RIGHT, y1=down(value), y2=down(value), class_="grid"))
        parts.append(text(f"{value:g}", LEFT - 6, down(value) + 4, text_anchor="end"))
    for value in ticks(across.low, across.high):
        parts.append(text(f"{value:g}", across(value), BOTTOM + 15, text_anchor="middle"))
    parts.append(text("accuracy, %", RIGHT, BOTTOM + 30, text_anchor="end"))
    parts += _stems(dots, across, down)
    for dot in dots:
        tip = f"{method_name(dot.method)}, {calibrator_name(dot.calibrator)}: accuracy {dot.accuracy:.1f}, "
        tip += f"ECE {dot.ece:.1f}, AUROC {dot.auroc:.1f} over {dot.cells} of {dot.total} cells"
        place = {"cx": across(dot.accuracy), "cy": down(dot.ece), "r": 4, "fill": colours[dot.calibrator]}
        parts.append(tag("circle", tag("title", escape(tip)), **place, fill_opacity="0.85"))
    return "".join(parts)


def _stems(dots: Sequence[Dot], across: Scale, down: Scale) -> list[str]:
    """Return a line through each method's dots, on to its name at the right."""
    by_method: dict[str, list[Dot]] = defaultdict(list)
    for dot in dots:
        by_method[dot.method].append(dot)
    tops = {name: max(own, key=lambda dot: dot.ece) for name, own in by_method.items()}
    names = sorted(tops, key=lambda name: (down(tops[name].ece), name))
    places = spread_labels([down(tops[name].ece) for name in names], 14, TOP, BOTTOM)
    parts = []
    for name, y in zip(names, places):
        x = across(tops[name].accuracy)
        bottom = down(min(dot.ece for dot in by_method[name]))
        points = f"{x:.1f},{bottom:.1f} {x:.1f},{down(tops[name].ece):.1f} {RIGHT + 6},{y:.1f}"
        parts.append(tag("polyline", points=points, fill="none", stroke="#bbb", stroke_width="0.7"))
        parts.append(text(method_name(name), RIGHT + 10, y + 4))
    return parts


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables and write the figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("places", nargs="+", help="folders with records, or packed files of them")
    parser.add_argument("--out", type=Path, help="where the figure goes, an SVG file; none without it")
    options = parser.parse_args(arguments)
    try:
        results = {place: load_results(place) for place in options.places}
    except SiclError as error:
        parser.error(str(error))
    found = panels([record for result in results.values() for record in result.records])
    if not found:
        parser.error(f"no finished records in {', '.join(options.places)}; run the plan first.")
    print(tables(found) + "\n")
    for place, result in results.items():
        of = "" if result.planned is None else f" of {result.planned} planned"
        print(f"{Path(place).name}: {len(result.records)}{of} cells.")
    if options.out:
        part = options.out.with_suffix(".part")
        part.write_text(figure(found) + "\n")
        part.replace(options.out)


if __name__ == "__main__":
    main()
