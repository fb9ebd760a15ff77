"""Made-up records of every preset at the paper's size: all corruptions, methods, seeds and settings."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from report_records import cell

from sicl.bench.paper import CORRUPTIONS
from sicl.bench.paper.presets import PRESETS, VIT_METHODS, Preset
from sicl.bench.run.schema import Record
from sicl.bench.tables.names import CALIBRATOR_NAMES

STREAMS = {
    "table2": ("benign", "dynamic"),
    "figure2": ("continual", "benign"),
    "figure8a": ("noisy",),
    "figure8b": ("noisy, mnist", "noisy, noise"),
    "figure9": ("dynamic",),
}


def label(entry: Any) -> str:
    """Return the name that a method or calibrator of a preset has in records."""
    return entry if isinstance(entry, str) else entry["label"]


def full_records(name: str, seeds: int = 1) -> list[Record]:
    """Return plausible records of a whole preset."""
    preset, generator = PRESETS[name], random.Random(name)
    return [_made(preset, place, generator) for seed in range(seeds) for place in _places(name, preset, seed)]


def _places(name: str, preset: Preset, seed: int) -> Iterator[dict[str, Any]]:
    for dataset in preset.datasets:
        for model in preset.models:
            for method in map(label, preset.methods):
                if model == "vit" and method not in VIT_METHODS:
                    continue
                setting = {"dataset": dataset, "model": model, "method": method, "seed": seed}
                for stream in STREAMS.get(name, ("benign",)):
                    several = stream in ("dynamic", "continual")
                    for corruption in [None] if several else CORRUPTIONS:
                        for severity in range(1, 6) if name == "figure7ab" else (5,):
                            yield {
                                **setting,
                                "stream": stream,
                                "corruption": corruption,
                                "severity": severity,
                            }


def _made(preset: Preset, place: dict[str, Any], generator: random.Random) -> Record:
    record = cell(place["corruption"] or "fog")
    rows: dict[str, dict[str, Any]] = {}
    for i, entry in enumerate(preset.calibrators):
        known = CALIBRATOR_NAMES if label(entry) in CALIBRATOR_NAMES else ("sicl",)
        row = record.calibrators[label(entry) if label(entry) in known else "sicl"]
        factor = generator.uniform(0.8, 1.2) * (1 + 0.1 * i)
        changed = {
            key: min(1.0, row[key] * factor) for key in ("ece", "cumulative_ece", "ece_right", "ece_wrong")
        }
        more = {
            "ood_auroc": generator.uniform(0.4, 0.9),
            "content_variance": factor,
            "style_variance": 40 * factor,
        }
        rows[label(entry)] = {**row, **changed, **more}
    runs = [(c, 100 * (i + 1)) for i, c in enumerate(CORRUPTIONS)] if place["corruption"] is None else []
    return replace(record, **place, calibrators=rows, segments=runs or record.segments)
