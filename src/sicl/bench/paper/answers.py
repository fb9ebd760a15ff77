"""The page that answers every claim: tables and figures made from records, set into text that stands by itself."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from sicl.bench.paper.claims import CLAIMS, Claim
from sicl.bench.paper.evidence import MAIN, RESNET18, Evidence, by, ece
from sicl.bench.run.schema import Record
from sicl.bench.tables.layout import Setting
from sicl.bench.tables.names import CALIBRATOR_NAMES, calibrator_name, dataset_name, model_name, stream_name
from sicl.bench.tables.plots import Plot, bars, dots, figure, lines, scatter
from sicl.bench.tables.printed import BESIDE as PRINTED
from sicl.bench.tables.printed import printed_value
from sicl.bench.tables.sheets import Sheet
from sicl.data.files import write_atomic
from sicl.errors import DataError

FULL = "--weights DIR --device cuda --n 4992 --seeds 0,1"
_FIGURES = ("figure2", "figure3", "figure6", "figure7ab", "figure7c", "figure8a", "figure8b")
RUNS = {
    "table2": f"sicl paper run table2 --datasets cifar10-c,cifar100-c --models resnet50,vit_tiny {FULL}",
    "table3": f"sicl paper run table3 {FULL}",
    "table4": f"sicl paper run table4 {FULL}",
    "resnet18-dynamic": "sicl bench results/plans/resnet18-dynamic.toml --device cuda",
    "resnet50-cifar10-c": "sicl paper run table2 --datasets cifar10-c --models resnet50 --seeds 0 --n 640",
    "vit-cifar10-c": "sicl paper run table2 --datasets cifar10-c --models vit --seeds 0 --n 640",
    "resnet18-collapse": "sicl bench results/plans/resnet18-collapse.toml --device cuda",
    "imagenet-resnet50": "sicl bench results/plans/imagenet-resnet50.toml --device cuda",
    **{name: f"sicl paper run {name} --models resnet18 {FULL}" for name in _FIGURES},
}
"""The command behind every run that a claim is measured on."""

_BLOCK = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def write_page(page: Path, results: Path) -> list[Path]:
    """Set the generated parts of a page anew, draw its figures beside it, and return the files written.

    Raises:
        DataError: the page or the folder of results cannot be read, or a part has no generator.
    """
    evidence = Evidence(results)
    written = [write_atomic(page, filled(_read(page), evidence))]
    for name, drawn in drawings(evidence).items():
        written.append(write_atomic(page.parent / "images" / f"{name}.svg", drawn))
    return written


def _read(page: Path) -> str:
    try:
        return page.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"`{page}` cannot be read: {error.strerror or error}.") from error


def filled(text: str, evidence: Evidence) -> str:
    """Return a page with what stands between `<!-- begin NAME -->` and `<!-- end NAME -->` made anew."""
    makers = {"claims": claims_table, "runs": runs_table, "results": results_table}

    def fill(match: re.Match[str]) -> str:
        if match[2] not in makers:
            raise DataError(f"The page has a part {match[2]!r}; known are {', '.join(makers)}.")
        return f"{match[1]}{makers[match[2]](evidence)}\n{match[3]}"

    return _BLOCK.sub(fill, text)


def claims_table(evidence: Evidence) -> str:
    """Return every claim with our answer, the verdict and the runs behind it, as Markdown."""
    lines = ["| the paper says | where | ours | verdict | runs |", "|---|---|---|---|---|"]
    counts: dict[str, int] = {}
    for claim in CLAIMS:
        answer = claim.measure(evidence)
        counts[answer.verdict] = counts.get(answer.verdict, 0) + 1
        verdict = answer.verdict if answer.ours != answer.verdict else ""
        lines.append(f"| {claim.text} | {claim.where} | {answer.ours} | {verdict} | {_source(claim)} |")
    told = ", ".join(f"{counts[name]} {name}" for name in sorted(counts))
    return "\n".join([*lines, "", f"{len(CLAIMS)} claims: {told}."])


def _source(claim: Claim) -> str:
    if not claim.runs:
        return claim.source
    return (
        "all of the main table's kind" if claim.runs == MAIN else ", ".join(f"`{run}`" for run in claim.runs)
    )


def runs_table(evidence: Evidence) -> str:
    """Return every run with its command and what was recorded of it, as Markdown."""
    lines = ["| run | command | records |", "|---|---|---|"]
    for name, command in RUNS.items():
        lines.append(f"| `{name}` | `{command}` | {_recorded(evidence, name)} |")
    return "\n".join(lines)


def _recorded(evidence: Evidence, name: str) -> str:
    records, place = evidence.run(name), evidence.place(name)
    if place is None or not records:
        return "not measured yet"
    sizes = sorted({record.n for record in records})
    images = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
    seeds = len({record.seed for record in records})
    many = f"{seeds} seed{'s' * (seeds != 1)}"
    return f"`results/{place.name}`: {len(records)} streams of {images} images, {many}"


def results_table(evidence: Evidence) -> str:
    """Return the mean cumulative ECE of every calibrator by network, data set and stream, as Markdown."""
    groups: dict[tuple[str, str, str], list[Setting]] = {}
    for one in evidence.settings():
        groups.setdefault((one.model, one.dataset, one.stream), []).append(one)
    names = [
        name for name in CALIBRATOR_NAMES if any(name in s.ece for part in groups.values() for s in part)
    ]
    head = ["network", "data set", "stream", "methods", "accuracy", *map(calibrator_name, names)]
    lines = [f"| {' | '.join(head)} |", "|---|---|---|" + "---:|" * (len(names) + 2)]
    for (model, dataset, stream), part in groups.items():
        means = {
            name: mean(one.ece[name] for one in part) for name in names if all(name in o.ece for o in part)
        }
        best = min(means.values())
        cells = [
            "-"
            if name not in means
            else f"**{means[name]:.1f}**"
            if means[name] == best
            else f"{means[name]:.1f}"
            for name in names
        ]
        place = [model_name(model), dataset_name(dataset), stream_name(stream), str(len(part))]
        lines.append(f"| {' | '.join([*place, f'{mean(o.accuracy for o in part):.1f}', *cells])} |")
    return "\n".join(lines)


def drawings(evidence: Evidence) -> dict[str, str]:
    """Return the page's figures by name; one whose records are missing is left out."""
    made = {
        "claims-readings": ("Readings of the printed formula, and our default: ECE, %", _readings(evidence)),
        "claims-printed": ("Ours against printed: cumulative ECE of ResNet-18, %", _against(evidence)),
        "claims-time": ("The softmax's ECE along the stream, %", _time(evidence)),
        "claims-collapse": ("TENT driven to collapse, ResNet-18: ECE, %", _collapse(evidence)),
    }
    return {name: figure(title, panels) for name, (title, panels) in made.items() if panels}


def _readings(evidence: Evidence) -> list[Plot]:
    """Draw the mean ECE of every reading on the validation corruptions, by data set."""
    path = evidence.root / "readings-validation.json"
    if not path.is_file():
        return []
    found: dict[str, dict[str, list[float]]] = {}
    for stream in json.loads(path.read_text(encoding="utf-8"))["streams"]:
        dataset, method, _, order = str(stream["stream"]).rsplit("-", 3)
        if order == "iid" and method in ("tent", "eata", "sar", "rotta", "sotta"):
            for name, row in stream["readings"].items():
                found.setdefault(name, {}).setdefault(dataset.split("-")[0], []).append(row["ece"])
    sets = ("cifar10", "cifar100")
    rows = [
        (name, tuple(mean(values[s]) for s in sets))
        for name, values in found.items()
        if set(sets) <= set(values)
    ]
    # Single signals with pooled statistics are close to those with frozen ones: one of the two is drawn.
    rows = [row for row in rows if ":" in row[0] or ".pooled." not in row[0]]
    rows.sort(key=lambda row: sum(row[1]))
    return [dots("", Sheet("readings", "", "reading", sets, tuple(rows)))] if rows else []


def _against(evidence: Evidence) -> list[Plot]:
    """Draw every printed average of the ResNet-18 tables against ours."""
    panels = []
    for run in RESNET18:
        points: dict[str, list[tuple[float, float]]] = {}
        for part in by(evidence.run(run), lambda r: r.method).values():
            for name in (*PRINTED, "sicl_paper"):
                ours, printed = ece(part, name), _printed_mean(part, name)
                if ours is not None and printed is not None:
                    points.setdefault(name, []).append((printed, ours))
        if points:
            title = dataset_name(evidence.run(run)[0].dataset)
            panels.append(scatter(title, points, x_title="printed", y_title="ours"))
    return panels


def _printed_mean(part: Sequence[Record], name: str) -> float | None:
    corruptions = sorted({record.corruption for record in part if record.corruption})
    values = [value for c in corruptions if (value := printed_value(part[0], name, c)) is not None]
    return mean(values) if values else None


def _time(evidence: Evidence) -> list[Plot]:
    """Draw the sliding-window ECE of the softmax for every method, static and dynamic."""
    panels = []
    for run in (*RESNET18, "resnet18-dynamic"):
        for dataset, part in by(evidence.run(run), lambda r: r.dataset).items():
            curves = {}
            for method, records in by(part, lambda r: r.method).items():
                parts = [r.calibrators["softmax"]["over_time"] for r in records if "softmax" in r.calibrators]
                # Streams of another length have windows at other places: the most common length is drawn.
                ends = max((tuple(p["end"]) for p in parts), key=[tuple(p["end"]) for p in parts].count)
                same = [p["ece"] for p in parts if tuple(p["end"]) == ends]
                curves[method] = [(end, 100 * mean(values)) for end, values in zip(ends, zip(*same))]
            title = f"{dataset_name(dataset)}, {'dynamic' if 'dynamic' in run else 'static'}"
            panels.append(lines(title, curves, x_title="samples seen"))
    return panels


def _collapse(evidence: Evidence) -> list[Plot]:
    """Draw ECE under TENT at twenty times its learning rate, with and without the guard."""
    names = ("softmax", "pseudocal", "sicl_paper", "sicl, no guard", "sicl")
    records = [r for r in evidence.run("resnet18-collapse") if r.method == "tent, lr 0.02"]
    groups = by(records, lambda r: f"{dataset_name(r.dataset)}, {r.stream}")
    rows = tuple((name, tuple(ece(part, label, "ece") for label in names)) for name, part in groups.items())
    return [bars("", Sheet("collapse", "", "stream", names, rows), width=780)] if rows else []
