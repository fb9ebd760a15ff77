"""Accuracy against ECE of adaptation methods and calibrators: a table, and a figure with one dot for each pair.

Means over the cells of each (data set, model, stream); a panel each. "ms a batch" is the whole run, adaptation and all
calibrators together, for 64 images.

    python results/methods.py results/methods [MORE FOLDERS] [--out docs/images/methods.svg]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import mean

from sicl.bench.run.results import load_records
from sicl.bench.run.schema import Record
from sicl.bench.tables.names import CALIBRATOR_NAMES, dataset_name, method_name, model_name, stream_name
from sicl.bench.tables.svg import Scale, nice_top, spread_labels, tag, text, ticks
from sicl.errors import SiclError

WIDTH, HEIGHT = 380, 300
LEFT, RIGHT, TOP, BOTTOM = 44, 300, 40, 254
COLOURS = {"softmax": "#9aa0a6", "pseudocal": "#efb118", "sicl": "#4269d0"}
OTHERS = ("#ff725c", "#6cc5b0", "#a463f2", "#9c6b4e")
STYLE = "text{font:10px sans-serif;fill:#333}.title{font-weight:bold;font-size:12px}.grid{stroke:#ddd}"


@dataclass(frozen=True)
class Dot:
    """One method under one calibrator: means over `cells` cells, in %; of `total` the others failed."""

    method: str
    calibrator: str
    accuracy: float
    ece: float
    auroc: float
    milliseconds: float
    cells: int
    total: int


Panels = dict[tuple[str, str, str], list[Dot]]


def panels(records: Sequence[Record]) -> Panels:
    """Return the dots of each data set, model and stream."""
    groups: dict[tuple[str, str, str], dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        groups[record.dataset, record.model, record.stream][record.method].append(record)
    made = {
        key: [dot for name, cells in methods.items() for dot in _dots(name, cells)]
        for key, methods in groups.items()
    }
    return {key: dots for key, dots in made.items() if dots}


def _dots(method: str, records: Sequence[Record]) -> list[Dot]:
    done = [record for record in records if record.status == "done"]
    dots = []
    for name in dict.fromkeys(name for record in done for name in record.calibrators):
        rows = [(record, record.calibrators[name]) for record in done if name in record.calibrators]
        auroc = [row["auroc"] for _, row in rows if row["auroc"] is not None]
        seconds = sum(record.timing.get("run_s", 0.0) for record, _ in rows)
        dots.append(
            Dot(
                method=method,
                calibrator=name,
                accuracy=100 * mean(row["accuracy"] for _, row in rows),
                ece=100 * mean(row["ece"] for _, row in rows),
                auroc=100 * mean(auroc) if auroc else float("nan"),
                milliseconds=64e3 * seconds / sum(record.n for record, _ in rows),
                cells=len(rows),
                total=len(records),
            )
        )
    return dots


def table(found: Panels) -> str:
    """Return a Markdown table: a row for each method, ECE (AUROC) for each calibrator."""
    names = list(dict.fromkeys(dot.calibrator for dots in found.values() for dot in dots))
    head = ["data set", "model", "stream", "method", "cells", "accuracy"]
    head += [f"{CALIBRATOR_NAMES.get(name, name)}: ECE (AUROC)" for name in names] + ["ms a batch"]
    lines = [head, ["---"] * len(head)]
    for (dataset, model, stream), dots in found.items():
        for method in dict.fromkeys(dot.method for dot in dots):
            by_name = {dot.calibrator: dot for dot in dots if dot.method == method}
            least = min(dot.ece for dot in by_name.values())
            cells = [_cell(by_name.get(name), least) for name in names]
            first = next(iter(by_name.values()))
            place = [dataset_name(dataset), model_name(model), stream_name(stream), method_name(method)]
            over = f"{first.cells} of {first.total}" if first.cells < first.total else f"{first.cells}"
            lines.append([*place, over, f"{first.accuracy:.1f}", *cells, f"{first.milliseconds:.0f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(dot: Dot | None, least: float) -> str:
    if dot is None:
        return "\N{EN DASH}"
    said = f"{dot.ece:.1f} ({dot.auroc:.1f})"
    return f"**{said}**" if dot.ece == least else said


def figure(found: Panels) -> str:
    """Return the panels as one standalone SVG file, two a row."""
    names = list(dict.fromkeys(dot.calibrator for dots in found.values() for dot in dots))
    free = iter(OTHERS * len(names))
    colours = {name: COLOURS.get(name) or next(free) for name in names}
    width, height = 2 * WIDTH, HEIGHT * -(-len(found) // 2) + 24
    parts = [tag("style", STYLE), tag("rect", width=width, height=height, fill="#fff")]
    x = 16.0
    for name, colour in colours.items():
        label = CALIBRATOR_NAMES.get(name, name)
        parts += [tag("circle", cx=x, cy=12, r=4, fill=colour), text(label, x + 8, 16)]
        x += 30 + 6 * len(label)
    for i, (key, dots) in enumerate(found.items()):
        move = f"translate({WIDTH * (i % 2)} {24 + HEIGHT * (i // 2)})"
        parts.append(tag("g", _panel(key, dots, colours), transform=move))
    return tag("svg", "".join(parts), xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}")


def _panel(key: tuple[str, str, str], dots: Sequence[Dot], colours: dict[str, str]) -> str:
    low, high = min(dot.accuracy for dot in dots), max(dot.accuracy for dot in dots)
    across = Scale(low - 0.06 * (high - low + 1), high + 0.06 * (high - low + 1), LEFT, RIGHT)
    down = Scale(0.0, nice_top(max(dot.ece for dot in dots), floor=5.0), BOTTOM, TOP)
    dataset, model, stream = key
    title = f"{dataset_name(dataset)}, {model_name(model)}, {stream_name(stream).lower()}"
    parts = [text(title, 12, 22, class_="title")]
    for value in ticks(down.low, down.high):
        parts.append(tag("line", x1=LEFT, x2=RIGHT, y1=down(value), y2=down(value), class_="grid"))
        parts.append(text(f"{value:g}", LEFT - 6, down(value) + 3, text_anchor="end"))
    for value in ticks(across.low, across.high):
        parts.append(text(f"{value:g}", across(value), BOTTOM + 14, text_anchor="middle"))
    parts.append(text("accuracy, %", RIGHT, BOTTOM + 28, text_anchor="end"))
    parts.append(text("ECE, %", 12, TOP - 6))
    for dot in dots:
        tip = f"{method_name(dot.method)}, {CALIBRATOR_NAMES.get(dot.calibrator, dot.calibrator)}: accuracy "
        tip += f"{dot.accuracy:.1f}, ECE {dot.ece:.1f}, AUROC {dot.auroc:.1f} over {dot.cells} of {dot.total} cells"
        fill, place = colours[dot.calibrator], {"cx": across(dot.accuracy), "cy": down(dot.ece)}
        parts.append(tag("circle", tag("title", escape(tip)), **place, r=4, fill=fill, fill_opacity="0.85"))
    return "".join([*parts, *_method_labels(dots, across, down)])


def _method_labels(dots: Sequence[Dot], across: Scale, down: Scale) -> list[str]:
    """Return a name for each method at the right, with a line to its highest dot."""
    top = {m: max((d for d in dots if d.method == m), key=lambda d: d.ece) for m in {d.method for d in dots}}
    methods = sorted(top, key=lambda name: (down(top[name].ece), name))
    places = spread_labels([down(top[name].ece) for name in methods], 12, TOP, BOTTOM)
    parts = []
    for name, y in zip(methods, places):
        ends = {"x1": across(top[name].accuracy), "y1": down(top[name].ece), "x2": RIGHT + 6, "y2": y}
        parts.append(tag("line", **ends, stroke="#bbb", stroke_width="0.6"))
        parts.append(text(method_name(name), RIGHT + 9, y + 3))
    return parts


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table and write the figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", help="folders with records")
    parser.add_argument("--out", type=Path, help="where the figure goes, an SVG file; none without it")
    options = parser.parse_args(arguments)
    try:
        found = panels([record for folder in options.folders for record in load_records(folder)])
    except SiclError as error:
        parser.error(str(error))
    if not found:
        parser.error(f"no finished records in {', '.join(options.folders)}; run the plan first.")
    print(table(found))
    if options.out:
        part = options.out.with_suffix(".part")
        part.write_text(figure(found) + "\n")
        part.replace(options.out)


if __name__ == "__main__":
    main()
