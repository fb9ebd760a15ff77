"""What calibrated confidence is worth without labels: estimated accuracy and promised risk, over records.

    python benchmarks/risk.py results/resnet18-cifar10-c.jsonl.xz [MORE ...] [--svg FILE] [--json FILE]

For every calibrator of the records: how far the mean confidence of a 256-sample window lies from its accuracy, and
the error rate of the samples that `accept(risk=...)` would take, beside the rate it promised: first by default, then
with `delta=None`. Records keep 15 reliability bins and 50 points of the risk-coverage curve; between them both are
interpolated, and the recent stream that a threshold is found on is 1,024 confidences at even ranks of all.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from sicl.bench.run.results import load_records
from sicl.bench.run.schema import Record
from sicl.bench.tables.names import calibrator_name
from sicl.bench.tables.svg import Frame, Scale, number, spread_labels, tag, text
from sicl.monitor.window import estimate_accuracy
from sicl.selective import DELTA, expected_threshold

RISKS = (0.05, 0.1, 0.2)
WINDOW, STREAM = 256, 1024
PROMISED = np.linspace(0.02, 0.3, 15)
LINES = (("softmax", "#6b7280"), ("pseudocal", "#17875a"), ("sicl", "#d11149"))
SHOWN = (
    *((name, DELTA) for name in ("softmax", "mc_dropout", "pseudocal", "sicl")),
    *((name, None) for name in ("softmax", "pseudocal", "sicl")),
)


def window_errors(record: Record, calibrator: str) -> np.ndarray:
    """Return |mean confidence - accuracy| of the record's windows."""
    over = record.calibrators[calibrator]["over_time"]
    return np.abs(np.array(over["confidence"]) - np.array(over["accuracy"]))


def windows_covered(record: Record, calibrator: str) -> np.ndarray:
    """Return whether the interval of each window holds its accuracy; all have the stream's mean variance."""
    bins = record.calibrators[calibrator]["reliability"]
    stream = np.repeat(np.array(bins["confidence"]), np.array(bins["count"], int))
    # As many of the stream's confidences as a window has: the interval depends on their number and spread.
    told = estimate_accuracy(evenly(stream, WINDOW))
    return window_errors(record, calibrator) <= told.high - told.accuracy


def evenly(values: np.ndarray, n: int) -> np.ndarray:
    """Return n of the values (all if there are no more), at even ranks."""
    return values[np.linspace(0, len(values) - 1, min(n, len(values))).round().astype(int)]


def confidences(bins: Mapping[str, Sequence[float]]) -> np.ndarray:
    """Return a stream's confidences, highest first: spread evenly about the mean of each bin, within its edges."""
    parts = []
    for low, high, count, mean in zip(*(bins[name] for name in ("lower", "upper", "count", "confidence"))):
        if count:
            half = max(0.0, min(mean - low, high - mean))
            parts.append(mean + half * np.linspace(-1, 1, 2 * int(count) + 1)[1::2])
    spread = np.sort(np.concatenate(parts))[::-1]
    # One by one: equal confidences would be accepted together.
    return spread - 1e-9 * np.arange(len(spread))


def realised(
    record: Record, calibrator: str, risk: float, delta: float | None = DELTA
) -> tuple[float, float]:
    """Return (realised risk, coverage) of what is accepted at a promised risk; NaN where nothing is."""
    part = record.calibrators[calibrator]
    confidence = confidences(part["reliability"])
    lowest = expected_threshold(torch.from_numpy(evenly(confidence, STREAM)), risk, delta=delta)
    coverage = float((confidence >= lowest).mean())
    if not coverage:
        return float("nan"), 0.0
    curve = part["risk_coverage"]
    return float(np.interp(coverage, curve["coverage"], curve["risk"])), coverage


def rows(records: Sequence[Record]) -> list[dict[str, object]]:
    """Return one row a calibrator."""
    table = []
    for name, delta in SHOWN:
        own = [record for record in records if record.status == "done" and name in record.calibrators]
        if not own:
            continue
        errors = np.concatenate([window_errors(record, name) for record in own])
        row: dict[str, object] = {"calibrator": name, "delta": delta, "streams": len(own)}
        covered = np.concatenate([windows_covered(record, name) for record in own])
        row |= {"estimate_error": float(errors.mean()), "within_5": float((errors <= 0.05).mean())}
        row["interval_holds"] = float(covered.mean())
        for risk in RISKS:
            found = np.array([realised(record, name, risk, delta) for record in own])
            known = found[np.isfinite(found[:, 0]), 0]
            kept = np.nan_to_num(found[:, 0], nan=0.0) <= risk + 0.01
            row[f"{risk:g}"] = {
                "realised": float(known.mean()) if len(known) else None,
                "worst_in_ten": float(np.quantile(known, 0.9)) if len(known) else None,
                "kept": float(kept.mean()),
                "exceeded": float((np.nan_to_num(found[:, 0], nan=0.0) > risk).mean()),
                "coverage": float(found[:, 1].mean()),
                "accepting": len(known) / len(found),
            }
        table.append(row)
    return table


def figure(records: Sequence[Record]) -> str:
    """Return promised against realised risk as an SVG."""
    curves = {}
    for name, _ in LINES:
        own = [record for record in records if record.status == "done" and name in record.calibrators]
        curves[name] = [[realised(record, name, float(risk))[0] for record in own] for risk in PROMISED]
    return drawing(curves)


def drawing(curves: dict[str, list[list[float]]]) -> str:
    """Return an SVG with a line a calibrator (the median stream) and a band for eight of ten streams.

    Args:
        curves: by calibrator, for each of `PROMISED`, what each stream realised; NaN where nothing was accepted.
    """
    frame = Frame(460, 300, Scale(0, 0.3, 44, 372), Scale(0, 0.5, 262, 16))
    style = (
        "text{font:11px system-ui,sans-serif;fill:#5c6470}.grid{stroke:#eceef2;fill:none}"
        ".axis{stroke:#8b93a1;fill:none}.end{text-anchor:end}.mid{text-anchor:middle}.line{fill:none;stroke-width:2.2}"
    )
    parts = [tag("style", style), tag("rect", width=460, height=300, fill="#fff")]
    parts.append(frame.axes((0, 0.1, 0.2, 0.3), (0, 0.1, 0.2, 0.3, 0.4, 0.5), _percent, _percent))
    ideal = f"M{number(frame.x(0))} {number(frame.y(0))}L{number(frame.x(0.3))} {number(frame.y(0.3))}"
    parts.append(tag("path", d=ideal, stroke="#8b93a1", stroke_dasharray="4 3"))
    named: list[tuple[str, str, float]] = []
    for name, colour in LINES:
        known = [(risk, column) for risk, column in zip(PROMISED, curves[name]) if np.isfinite(column).any()]
        if not known:
            continue
        ends = [np.nanquantile(column, (0.1, 0.5, 0.9)).clip(0, 0.5) for _, column in known]
        place = [frame.x(float(risk)) for risk, _ in known]
        low, middle, high = (
            [f"{number(x)},{number(frame.y(float(end[k])))}" for x, end in zip(place, ends)] for k in range(3)
        )
        parts.append(tag("polygon", points=" ".join(high + low[::-1]), fill=colour, opacity="0.12"))
        parts.append(tag("polyline", points=" ".join(middle), class_="line", stroke=colour))
        named.append((calibrator_name(name), colour, frame.y(float(ends[-1][1])) + 4))
    for (name, colour, _), y in zip(named, spread_labels([place for *_, place in named], 14, 16, 262)):
        parts.append(text(name, 378, y, style=f"fill:{colour};font-weight:600"))
    parts.append(text("promised risk, %", 208, 294, class_="mid"))
    parts.append(text("realised risk, %", 44, 10))
    return frame.svg("".join(parts), "Promised against realised risk", xmlns="http://www.w3.org/2000/svg")


def _percent(value: float) -> str:
    return f"{100 * value:.0f}"


def show(table: Sequence[dict[str, object]]) -> str:
    """Return the rows as Markdown."""
    heads = ["confidence from", "streams", "estimate off by", "within 5 points", "interval holds"]
    heads += [f"at {risk:.0%}: realised (9 of 10), kept, accepted (in streams)" for risk in RISKS]
    lines = ["| " + " | ".join(heads) + " |", "|" + " --- |" * len(heads)]
    for row in table:
        careful = ", `delta=None`" if row["delta"] is None else ""
        cells = [calibrator_name(str(row["calibrator"])) + careful, str(row["streams"])]
        cells += [
            f"{100 * float(str(row['estimate_error'])):.1f}",
            f"{100 * float(str(row['within_5'])):.0f} %",
            f"{100 * float(str(row['interval_holds'])):.0f} %",
        ]
        for risk in RISKS:
            at = row[f"{risk:g}"]
            assert isinstance(at, dict)
            told = (
                "none"
                if at["realised"] is None
                else f"{100 * at['realised']:.1f} ({100 * at['worst_in_ten']:.1f})"
            )
            taken = f"{100 * at['coverage']:.0f} % (in {100 * at['accepting']:.0f} %)"
            cells.append(f"{told}, {100 * at['kept']:.0f} %, {taken}")
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Read records, print the table, and write figure and numbers where asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    records = [record for folder in options.folders for record in load_records(folder)]
    table = rows(records)
    print(show(table))
    if options.svg:
        options.svg.write_text(figure(records))
    if options.json:
        options.json.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
