"""The paper's figures drawn from our numbers, panel by panel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sicl.bench.run.schema import Record
from sicl.bench.tables.layout import ACCURACY, against
from sicl.bench.tables.names import CALIBRATOR_NAMES, method_name
from sicl.bench.tables.plots import (
    Drawing,
    Plot,
    bars,
    dots,
    joined,
    lines,
    reliability,
    scatter,
    sheet_lines,
    stream,
)
from sicl.bench.tables.sheets import Sheet

Sheets = Mapping[str, Sheet]


def drawing(preset: str, title: str, made: Sequence[Sheet], records: Sequence[Record]) -> Drawing | None:
    """Return a preset's figure, or None where its records have nothing to draw."""
    panels = _PANELS[preset]({sheet.name: sheet for sheet in made if sheet.rows}, records)
    note = next((sheet.note.removeprefix("Bold: lowest. ") for sheet in made if sheet.note), "")
    return Drawing(title, panels, note) if panels else None


def _table(sheets: Sheets, records: Sequence[Record]) -> list[Plot]:
    """Draw ours against the printed numbers of every setting, or our tables where none is printed."""
    if "paper" in sheets:
        return [scatter(f"{title}: cumulative ECE, %", points) for title, points in against(records).items()]
    return [dots(sheet.title, _by_key(sheet)) for name, sheet in sheets.items() if name.startswith("ece")]


def _by_key(sheet: Sheet) -> Sheet:
    """Return a printed table turned, with calibrators by the names that decide their colours."""
    keys = {name: key for key, name in CALIBRATOR_NAMES.items()}
    turned = sheet.turned()
    kept = turned.only(name for name in turned.columns if name != ACCURACY)
    return replace(kept, columns=tuple(keys.get(name, name) for name in kept.columns), digits=1)


def _observation(sheets: Sheets, records: Sequence[Record]) -> list[Plot]:
    """Four panels: (a) and (b) a fixed model over changing corruptions, (c) and (d) TENT on one."""
    panels = []
    fixed = "batchnorm" if any(name.startswith("batchnorm") for name in sheets) else "source"
    for letters, method, kind, what in (
        ("ab", fixed, "continual", "fixed weights"),
        ("cd", "tent", "benign", "TENT, static"),
    ):
        name = f"{method}-{kind}"
        ends = [part for part in ("first", "last") if f"{name}-{part}" in sheets]
        if ends:
            panels.append(joined([_reliability(letters[0], part, sheets[f"{name}-{part}"]) for part in ends]))
        curves = {
            other: _curve(sheets[f"{other}-{kind}-over-time"])
            for other in (fixed, "tent")
            if f"{other}-{kind}-over-time" in sheets
        }
        if method not in curves:
            continue
        changes = next((r.segments for r in records if r.stream == kind and r.segments), [])
        shown = {method: curves[method]} if letters == "ab" else curves
        title = f"({letters[1]}) sliding ECE, %: {what}"
        panels.append(lines(title, shown, x_title="samples seen", changes=changes))
    return panels


def _reliability(letter: str, part: str, sheet: Sheet) -> Plot:
    n = sum(int(row[2] or 0) for _, row in sheet.rows)
    return reliability(f"({letter}) {part} {n:,} samples", sheet, _ece(sheet))


def _curve(sheet: Sheet) -> list[tuple[float, float]]:
    return [(float(end), row[0]) for end, row in sheet.rows if row[0] is not None]


def _ece(sheet: Sheet) -> float:
    """Return the ECE of a sheet of bins: the mean gap, weighted by samples."""
    total = sum(row[2] or 0 for _, row in sheet.rows)
    return sum(abs((row[0] or 0) - (row[1] or 0)) * (row[2] or 0) for _, row in sheet.rows) / total


def _motivation(sheets: Sheets, records: Sequence[Record]) -> list[Plot]:
    """(a) ECE of style and content votes, (b) ContentVariance of MixStyle and dropout."""
    return [
        bars("(a) ECE of 20 votes, %", sheets["ece"].only(("content", "style"))),
        bars("(b) ContentVariance", sheets["content_variance"].only(("mixstyle", "dropout")), unit=""),
    ]


def _analysis(sheets: Sheets, records: Sequence[Record]) -> list[Plot]:
    """(a) ContentVariance and (b) StyleVariance of style perturbation, MixStyle and dropout."""
    return [
        bars("(a) ContentVariance", sheets["content_variance"], unit=""),
        bars("(b) StyleVariance", sheets["style_variance"], unit=""),
    ]


def _ablation(sheets: Sheets, records: Sequence[Record]) -> list[Plot]:
    """Bars by method for components and relaxation, lines over the number of variants."""
    panels = [
        bars("(a) what is perturbed: cumulative ECE, %", sheets["components"]),
        bars("(b) relaxation of the style votes: cumulative ECE, %", sheets["relaxation"]),
    ]
    if "variants" in sheets:
        panels.append(sheet_lines("(c) variants N: cumulative ECE, %", sheets["variants"]))
    panels.append(bars("parts of our default: cumulative ECE, %", sheets["default"]))
    return panels


def _severities(sheets: Sheets, records: Sequence[Record]) -> list[Plot]:
    """Lines over severity, right and wrong predictions apart."""
    return [
        sheet_lines("(a) right predictions: ECE, %", sheets["ece_right"]),
        sheet_lines("(b) wrong predictions: ECE, %", sheets["ece_wrong"]),
        sheet_lines("both: cumulative ECE, %", sheets["cumulative_ece"]),
    ]


def _layers(sheets: Sheets, records: Sequence[Record]) -> list[Plot]:
    """Bars by method for each stage."""
    parts = [(sheet, tuple(name.rpartition(", ")[2] for name in sheet.columns)) for sheet in sheets.values()]
    return [bars(f"(c) {sheet.title}", replace(sheet, columns=stages)) for sheet, stages in parts]


def _ood(sheets: Sheets, records: Sequence[Record]) -> list[Plot]:
    """Bars by category of corruption."""
    return [bars(f"(a) {sheets['auroc'].title}", sheets["auroc"]), bars(sheets["ece"].title, sheets["ece"])]


def _sotta(sheets: Sheets, records: Sequence[Record]) -> list[Plot]:
    """Bars by corruption, SoTTA with and without SICL."""
    return [
        bars(f"(b) {sheet.title}", sheet) for name, sheet in sheets.items() if name.startswith("accuracy")
    ]


def _stream(sheets: Sheets, records: Sequence[Record]) -> list[Plot]:
    """Draw the first stream that changes."""
    found = next((r for r in records if len(r.segments) > 1), None)
    return [stream(f"{method_name(found.method)}, seed {found.seed}", found.segments)] if found else []


_PANELS: dict[str, Callable[[Sheets, Sequence[Record]], list[Plot]]] = {
    "table2": _table,
    "table3": _table,
    "table4": _table,
    "figure2": _observation,
    "figure3": _motivation,
    "figure5": _analysis,
    "figure6": _ablation,
    "figure7ab": _severities,
    "figure7c": _layers,
    "figure8a": _ood,
    "figure8b": _sotta,
    "figure9": _stream,
}
