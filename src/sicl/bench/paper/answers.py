"""The page that answers every claim: tables and figures made from records, set into text that stands by itself."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from sicl.bench.paper.claims import CLAIMS, QUICK_RUNS, RUNS, SHORT_READINGS, Claim
from sicl.bench.paper.evidence import MAIN, OLDER, QUICK, RESNET18, UNKNOWN, Evidence, Judgement
from sicl.bench.paper.presets import METHODS
from sicl.bench.run.schema import Record
from sicl.bench.tables.layout import against
from sicl.bench.tables.names import CALIBRATOR_NAMES, calibrator_name, dataset_name, model_name, stream_name
from sicl.bench.tables.plots import Plot, bars, dots, lines, scatter
from sicl.bench.tables.sheets import Sheet
from sicl.bench.tables.summary import by, mean_percent
from sicl.data.files import write_atomic
from sicl.errors import DataError

ORDERS = {"by class": "sorted by class", "iid": "in random order"}
_BLOCK = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def write_page(page: Path, results: Path) -> list[Path]:
    """Set the generated parts of a page anew, draw its figures beside it, and return the files written.

    Raises:
        DataError: the page or the folder of results cannot be read, or a part has no generator.
    """
    evidence = Evidence(results)
    written = [write_atomic(page, filled(_read(page), evidence))]
    for name, panel in drawings(evidence).items():
        written.append(write_atomic(page.parent / "images" / f"{name}.svg", panel.svg()))
    return written


def _read(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"`{page}` cannot be read: {error.strerror or error}.") from error


def filled(text: str, evidence: Evidence) -> str:
    """Return a page with what stands between `<!-- begin NAME -->` and `<!-- end NAME -->` made anew."""
    makers = {
        "claims": claims_table,
        "runs": runs_table,
        "quick": quick_table,
        "results": results_table,
    }

    def fill(match: re.Match[str]) -> str:
        if match[2] not in makers:
            raise DataError(f"The page has a part {match[2]!r}; known are {', '.join(makers)}.")
        return f"{match[1]}{makers[match[2]](evidence)}\n{match[3]}"

    return _BLOCK.sub(fill, text)


def claims_table(evidence: Evidence) -> str:
    """Return every claim with the verdict, our answers at full and at small size, and the runs, as Markdown."""
    quick = evidence.quick()
    lines = [
        "| the paper says | where | verdict | full size | embedded model | runs |",
        "|---|---|---|---|---|---|",
    ]
    counts: Counter[str] = Counter()
    for claim in CLAIMS:
        full = claim.measure(evidence)
        small = claim.measure(quick) if quick and claim.runs else UNKNOWN
        verdict = _verdict(full, small)
        counts[verdict] += 1
        cells = [claim.text, claim.where, verdict, _told(full), _told(small), _source(claim)]
        lines.append(f"| {' | '.join(cells)} |")
    told = ", ".join(f"{counts[name]} {name}" for name in sorted(counts, key=lambda name: name.strip("()")))
    return "\n".join([*lines, "", f"{len(CLAIMS)} claims: {told}."])


def _verdict(full: Judgement, small: Judgement) -> str:
    """Return the verdict at full size; in brackets, where there is none, that of the embedded model."""
    if full.verdict != UNKNOWN.verdict:
        return full.verdict
    return f"({small.verdict})" if small.verdict != UNKNOWN.verdict else UNKNOWN.verdict


def _told(answer: Judgement) -> str:
    return answer.ours if answer is not UNKNOWN else ""


def _source(claim: Claim) -> str:
    if not claim.runs:
        return claim.source
    return (
        "all of the main table's kind" if claim.runs == MAIN else ", ".join(f"`{run}`" for run in claim.runs)
    )


def runs_table(evidence: Evidence) -> str:
    """Return every run with its command and what was recorded of it, as Markdown."""
    return _commands(RUNS, evidence)


def quick_table(evidence: Evidence) -> str:
    """Return every quick run with its command and what was recorded of it, as Markdown."""
    return _commands(QUICK_RUNS, evidence.quick())


def _commands(runs: Mapping[str, str], evidence: Evidence | None) -> str:
    lines = ["| run | command | records |", "|---|---|---|"]
    for name, command in runs.items():
        lines.append(f"| `{name}` | `{command}` | {_recorded(evidence, name)} |")
    return "\n".join(lines)


def _recorded(evidence: Evidence | None, name: str) -> str:
    place = evidence.place(name) if evidence else None
    if evidence is None or place is None:
        return UNKNOWN.ours
    records = evidence.run(name)
    sizes = sorted({record.n for record in records})
    images = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    seeds = len({record.seed for record in records})
    versions = ", ".join(sorted({str(record.environment.get("sicl", "?")) for record in records}))
    folder = "results/" if evidence.names is OLDER else f"results/{QUICK}/"
    return (
        f"`{folder}{place.name}`: {len(records)} streams of {images} images, "
        f"{seeds} seed{'s' * (seeds != 1)}, version {versions}"
    )


def results_table(evidence: Evidence) -> str:
    """Return the mean cumulative ECE of every calibrator by network, data set and stream, as Markdown."""
    every = evidence.settings()
    names = [name for name in CALIBRATOR_NAMES if any(name in one.ece for one in every)]
    head = ["network", "data set", "stream", "methods", "accuracy", *map(calibrator_name, names)]
    lines = [f"| {' | '.join(head)} |", "|---|---|---|" + "---:|" * (len(names) + 2)]
    for (model, dataset, stream), part in by(every, lambda s: (s.model, s.dataset, s.stream)).items():
        means = {
            name: mean(one.ece[name] for one in part) for name in names if all(name in o.ece for o in part)
        }
        best = min(means.values())
        texts = {n: f"**{value:.1f}**" if value == best else f"{value:.1f}" for n, value in means.items()}
        cells = [texts.get(name, "-") for name in names]
        place = [model_name(model), dataset_name(dataset), stream_name(stream), str(len(part))]
        lines.append(f"| {' | '.join([*place, f'{mean(o.accuracy for o in part):.1f}', *cells])} |")
    return "\n".join(lines)


def drawings(evidence: Evidence) -> dict[str, Plot]:
    """Return the page's plots by name; one whose records are missing is left out."""
    return {**_readings(evidence), **_against(evidence), **_time(evidence), **_collapse(evidence)}


def _readings(evidence: Evidence) -> dict[str, Plot]:
    """Draw the mean ECE of every reading on the validation corruptions, by data set, hard and soft votes."""
    path = evidence.root / "readings-validation.json"
    if not path.is_file():
        return {}
    found: dict[str, dict[str, list[float]]] = {}
    for stream in json.loads(path.read_text(encoding="utf-8"))["streams"]:
        dataset, method, _, order = str(stream["stream"]).rsplit("-", 3)
        if order != "iid" or method not in METHODS:
            continue
        for reading, row in stream["readings"].items():
            # Statistics that are pooled, or the batch's, are close to frozen ones: one of the three is drawn.
            if ".pooled." in reading or ".batch." in reading:
                continue
            name, votes = _reading(reading)
            found.setdefault(name, {}).setdefault(dataset.split("-")[0] + votes, []).append(row["ece"])
    columns = ("cifar10", "cifar10, hard", "cifar100", "cifar100, hard")
    rows = [
        (name, tuple(mean(values[c]) if c in values else None for c in columns))
        for name, values in found.items()
    ]
    rows.sort(key=lambda row: min(v for v in row[1][:2] if v is not None))
    return {
        "claims-readings": dots("ECE, %: soft votes, and hard ones", Sheet("", "", "", columns, tuple(rows)))
    }


def _reading(name: str) -> tuple[str, str]:
    """Return a reading as it is written, and ", hard" for hard votes."""
    hard = ", hard" if name.endswith(".hard") or name.startswith("printed") else ""
    bare = name.removesuffix(".hard").removesuffix(".soft").removesuffix(".frozen")
    if bare in SHORT_READINGS:
        return SHORT_READINGS[bare], hard
    layer, _, rest = bare.partition(".")
    kind = rest.rstrip("0123456789.")
    size = rest.removeprefix(kind)
    return f"{layer}, {'MixStyle' if kind == 'mix' else kind if kind == 'swap' else f'{kind} x {size}'}", hard


def _against(evidence: Evidence) -> dict[str, Plot]:
    """Draw every printed average of the ResNet-18 tables against ours."""
    made = {}
    for run in RESNET18:
        records = evidence.run(run)
        for title, points in against(records).items():
            name = f"claims-printed-{records[0].dataset.removesuffix('-c')}"
            made[name] = scatter(f"{title}: cumulative ECE, %", points)
    return made


def _time(evidence: Evidence) -> dict[str, Plot]:
    """Draw the sliding-window ECE of the softmax for every method, static and dynamic."""
    made = {}
    for run in (*RESNET18, "resnet18-dynamic"):
        for dataset, part in by(evidence.run(run), lambda r: r.dataset).items():
            groups = by(part, lambda r: r.method)
            curves = {method: _along(groups[method]) for method in METHODS if method in groups}
            kind = "dynamic" if "dynamic" in run else "static"
            title = f"{dataset_name(dataset)}, {kind}: the softmax's ECE, %"
            made[f"claims-time-{dataset.removesuffix('-c')}-{kind}"] = lines(
                title, curves, x_title="samples seen"
            )
    return made


def _along(records: Sequence[Record]) -> list[tuple[float, float]]:
    parts = [r.calibrators["softmax"]["over_time"] for r in records if "softmax" in r.calibrators]
    # Streams of another length have windows at other places: the most common length is drawn.
    every = [tuple(part["end"]) for part in parts]
    ends = max(every, key=every.count)
    same = [part["ece"] for part in parts if tuple(part["end"]) == ends]
    return [(end, 100 * mean(values)) for end, values in zip(ends, zip(*same))]


def _collapse(evidence: Evidence) -> dict[str, Plot]:
    """Draw ECE under TENT at twenty times its learning rate, with and without the guard."""
    names = ("softmax", "pseudocal", "sicl_paper", "sicl, no guard", "sicl")
    records = [r for r in evidence.run("resnet18-collapse") if r.method == "tent, lr 0.02"]
    made = {}
    for dataset, part in by(records, lambda r: r.dataset).items():
        rows = tuple(
            (ORDERS[order], tuple(mean_percent(group, label, "ece") for label in names))
            for order, group in by(part, lambda r: r.stream).items()
        )
        title = f"{dataset_name(dataset)}, TENT at learning rate 0.02: ECE, %"
        made[f"claims-collapse-{dataset.removesuffix('-c')}"] = bars(
            title, Sheet("collapse", "", "stream", names, rows)
        )
    return made
