"""How each claim of the paper is measured on our records."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from statistics import mean

from sicl.bench.paper.evidence import (
    ENTROPY,
    MAIN,
    RESNET18,
    UNKNOWN,
    Evidence,
    Judgement,
    Verdict,
    difference,
    growth,
    judged,
)
from sicl.bench.run.schema import Record
from sicl.bench.tables.layout import COMPARED
from sicl.bench.tables.names import calibrator_name, method_name
from sicl.bench.tables.printed import inconsistencies, paper_wins
from sicl.bench.tables.summary import by, category, mean_percent

Measure = Callable[[Evidence], Judgement]


def points_lower(evidence: Evidence, stream: str | None, printed: float) -> Judgement:
    """Points by which SICL is below the mean of the four others."""
    gaps = [gap for one in evidence.settings(stream=stream) if (gap := one.gap()) is not None]
    if not gaps:
        return UNKNOWN
    return Judgement(f"{mean(gaps):.1f} points lower, {len(gaps)} settings", judged(mean(gaps), printed, 0))


def wins(evidence: Evidence) -> Judgement:
    won = [won for one in evidence.settings() if (won := one.won()) is not None]
    return Judgement(f"{sum(won)} of {len(won)}", judged(sum(won) / len(won), 63 / 72)) if won else UNKNOWN


def printed_wins(evidence: Evidence) -> Judgement:
    won, total = paper_wins()
    return Judgement(f"its table has {won} of {total}", "partly" if won != 63 else "confirmed")


def printed_means(evidence: Evidence) -> Judgement:
    wrong = len(inconsistencies())
    return Judgement(f"{wrong} of 80 are not", "refuted" if wrong else "confirmed")


def table(evidence: Evidence, run: str, calibrator: str, tolerance: float) -> Judgement:
    """Mean ECE beside the mean of what is printed."""
    records = evidence.run(run)
    ours, differences = mean_percent(records, calibrator), difference(records, calibrator)
    if ours is None or not differences:
        return UNKNOWN
    text = f"{ours:.1f} (printed {ours - mean(differences):.1f})"
    if mean(differences) > tolerance:
        return Judgement(text, "refuted")
    return Judgement(text, "partly" if max(differences) > tolerance else "confirmed")


def reproduces(evidence: Evidence, calibrator: str) -> Judgement:
    """How far a baseline is from its printed numbers, over both ResNet-18 tables."""
    found = [d for run in RESNET18 for d in difference(evidence.run(run), calibrator)]
    if not found:
        return UNKNOWN
    near = sum(abs(d) <= 3 for d in found)
    text = f"{min(found):+.1f} to {max(found):+.1f} points; within 3 in {near} of {len(found)}"
    return Judgement(text, judged(near / len(found)))


def _fixed_model(evidence: Evidence) -> dict[str, list[float]]:
    """Return the softmax of fixed weights along changing corruptions; nothing where that was not recorded."""
    for record in evidence.run("figure2"):
        if (record.method, record.stream) == ("batchnorm", "continual"):
            found: dict[str, list[float]] = record.calibrators["softmax"]["over_time"]
            return found
    return {}


def first_last(evidence: Evidence) -> Judgement:
    lines = _fixed_model(evidence)
    if not lines:
        return UNKNOWN
    first, last = lines["ece"][0], lines["ece"][-1]
    said = [100 * (lines["confidence"][i] - lines["accuracy"][i]) for i in (0, -1)]
    text = f"ECE {100 * first:.0f} and {100 * last:.0f} %, bias {said[0]:+.0f} and {said[1]:+.0f}"
    alike = abs(first - last) < 0.05
    return Judgement(text, "confirmed" if alike and abs(said[0] - said[1]) > 5 else "partly")


def swings(evidence: Evidence) -> Judgement:
    lines = _fixed_model(evidence)
    if not lines:
        return UNKNOWN
    low, high = 100 * min(lines["ece"]), 100 * max(lines["ece"])
    return Judgement(f"{low:.0f} to {high:.0f} %", "confirmed" if high > 2 * low else "partly")


def threefold(evidence: Evidence) -> Judgement:
    wanted = (r for r in evidence.run("table3") if (r.method, r.corruption) == ("tent", "gaussian_noise"))
    found = _growths(wanted)
    if not found:
        return UNKNOWN
    first, last = map(mean, zip(*found))
    return Judgement(
        f"{first:.1f} to {last:.1f} %: x {last / first:.1f}", judged(last, 2.5 * first, 1.2 * first)
    )


def grows(evidence: Evidence, run: str, stream: str) -> Judgement:
    """The softmax's ECE in the first and the last quarter of a stream, under entropy minimisation."""
    found = _growths(r for r in evidence.run(run) if r.method in ENTROPY and r.stream == stream)
    if not found:
        return UNKNOWN
    first, last = map(mean, zip(*found))
    more = sum(after > before for before, after in found)
    verdict: Verdict = "confirmed" if more == len(found) and last > first + 2 else "partly"
    if last < first + 1:
        verdict = "refuted"
    return Judgement(f"{first:.1f} to {last:.1f} %, rises in {more} of {len(found)} streams", verdict)


def _growths(records: Iterable[Record]) -> list[tuple[float, float]]:
    return [pair for record in records if (pair := growth(record)) is not None]


def content_noise(evidence: Evidence) -> Judgement:
    style, content = (mean_percent(evidence.run("figure3"), name, "ece") for name in ("style", "content"))
    if style is None or content is None:
        return UNKNOWN
    ratio = content / style
    return Judgement(f"{content:.1f} against {style:.1f} %: x {ratio:.1f}", judged(ratio, 4, 1.5))


def _rows(
    groups: Iterable[Sequence[Record]], names: Sequence[str], key: str = "cumulative_ece"
) -> list[list[float]]:
    """Return what some calibrators have in each group, where all of them have it, in %."""
    rows = [[mean_percent(part, name, key) for name in names] for part in groups]
    return [[value for value in row if value is not None] for row in rows if None not in row]


def variances(evidence: Evidence, key: str, names: Sequence[str], above: bool) -> Judgement:
    """In how many corruptions the first perturbation's variance is below (or above) all others'."""
    rows = _rows(by(evidence.run("figure3"), lambda r: r.corruption or "").values(), names, key)
    if not rows:
        return UNKNOWN
    held = sum(row[0] > max(row[1:]) if above else row[0] < min(row[1:]) for row in rows)
    told = ", ".join(f"{name} {mean(column) / 100:.3g}" for name, column in zip(names, zip(*rows)))
    return Judgement(f"{told}; in {held} of {len(rows)}", judged(held / len(rows)))


def lowest_for_methods(evidence: Evidence, names: Sequence[str]) -> Judgement:
    """For how many methods the first calibrator is below the others."""
    rows = _rows(by(evidence.run("figure6"), lambda r: r.method).values(), names)
    if not rows:
        return UNKNOWN
    held = sum(row[0] < min(row[1:]) for row in rows)
    told = ", ".join(f"{calibrator_name(n)} {mean(column):.1f}" for n, column in zip(names, zip(*rows)))
    return Judgement(f"{told}; for {held} of {len(rows)} methods", judged(held / len(rows)))


def gain_by_method(evidence: Evidence) -> Judgement:
    groups = by(evidence.run("figure6"), lambda r: r.method)
    pairs = {method: _rows([part], ("style votes", "sicl_paper")) for method, part in groups.items()}
    gains = {method: rows[0][0] - rows[0][1] for method, rows in pairs.items() if rows}
    if not {"sar", "sotta", "tent"} <= gains.keys():
        return UNKNOWN
    told = ", ".join(f"{method_name(name)} {gain:+.0f}" for name, gain in gains.items())
    if max(gains.values()) <= 0:
        return Judgement(f"no gain to compare: {told}", "refuted")
    robust = max(gains["sar"], gains["sotta"])
    others = min(gain for name, gain in gains.items() if name not in ("sar", "sotta"))
    return Judgement(f"gain {told}", "confirmed" if robust < others else "refuted")


def few_variants(evidence: Evidence) -> Judgement:
    found = mean_percent(evidence.run("figure6"), "style votes, N = 5")
    if found is None:
        return UNKNOWN
    return Judgement(f"{found:.1f} % (style votes alone)", "confirmed" if found < 10 else "refuted")


def more_variants(evidence: Evidence) -> Judgement:
    labels = ["style votes" if n == 20 else f"style votes, N = {n}" for n in (5, 10, 15, 20, 30, 40)]
    rows = _rows([evidence.run("figure6")], labels)
    if not rows:
        return UNKNOWN
    (values,) = rows
    falls = all(after <= before + 0.05 for before, after in itertools.pairwise(values))
    text = f"{values[0]:.1f} at 5, {values[3]:.1f} at 20, {values[-1]:.1f} at 40"
    return Judgement(text, "confirmed" if falls and values[-1] < values[0] - 0.2 else "partly")


def severity_rises(evidence: Evidence, key: str) -> Judgement:
    """Whether the softmax's ECE of right or wrong predictions rises with the severity."""
    groups = by(evidence.run("figure7ab"), lambda r: str(r.severity))
    values = [
        v for level in "12345" if (v := mean_percent(groups.get(level, []), "softmax", key)) is not None
    ]
    if len(values) < 3:
        return UNKNOWN
    steps = len(values) - 1
    rises = sum(after > before for before, after in itertools.pairwise(values))
    text = f"{values[0]:.1f} at severity 1, {values[-1]:.1f} at 5; rises in {rises} of {steps} steps"
    return Judgement(text, judged(rises / steps))


def layers(evidence: Evidence) -> Judgement:
    rows = _rows([evidence.run("figure7c")], [f"style votes, layer{i}" for i in (1, 2, 3, 4)])
    if not rows:
        return UNKNOWN
    told = ", ".join(f"{value:.1f}" for value in rows[0])
    *first, last = rows[0]
    alike, far = max(first) - min(first) < 3, last > max(first) + 3
    return Judgement(f"style votes {told}", "confirmed" if alike and far else "partly" if far else "refuted")


def ood(evidence: Evidence) -> Judgement:
    rows = _rows(by(evidence.run("figure8a"), category).values(), ("sicl", "softmax", *COMPARED), "ood_auroc")
    if not rows:
        return UNKNOWN
    held = sum(row[0] > max(row[1:]) for row in rows)
    ours, best = mean(row[0] for row in rows), mean(max(row[1:]) for row in rows)
    text = f"SICL {ours:.1f}, best other {best:.1f}; in {held} of {len(rows)} categories"
    return Judgement(text, judged(held / len(rows)))


def sotta_gains(evidence: Evidence) -> Judgement:
    records = evidence.run("figure8b")
    digits, noise = (_filtered(records, f"noisy, {name}") for name in ("mnist", "noise"))
    if not digits:
        return UNKNOWN
    other = f" (uniform noise: {noise[0]:.1f} to {noise[1]:.1f})" if noise else ""
    return Judgement(f"{digits[0]:.1f} to {digits[1]:.1f} %{other}", judged(digits[1] - digits[0], 0.5, 0))


def _filtered(records: Sequence[Record], stream: str) -> list[float]:
    """Return SoTTA's accuracy on a stream without and with SICL as its filter, in %; nothing where one is missing."""
    groups = by((r for r in records if r.stream == stream), lambda r: r.method)
    names = ("sotta", "sotta+sicl")
    whole = all(name in groups for name in names)
    return [100 * mean(r.accuracy or 0.0 for r in groups[name]) for name in names] if whole else []


def same_labels(evidence: Evidence) -> Judgement:
    records = [r for r in evidence.run(*MAIN) if "sicl" in r.calibrators]
    if not records:
        return UNKNOWN
    same = sum(r.calibrators["sicl"]["accuracy"] == r.accuracy for r in records)
    return Judgement(f"the same in {same} of {len(records)} cells", judged(same / len(records)))


def ranks(evidence: Evidence) -> Judgement:
    known = _rows(([record] for record in evidence.run(*MAIN)), ("softmax", "sicl"), "auroc")
    if not known:
        return UNKNOWN
    higher = sum(ours > plain for plain, ours in known)
    plain, ours = map(mean, zip(*known))
    text = f"AUROC {plain:.1f} to {ours:.1f}, higher in {higher} of {len(known)} cells"
    return Judgement(text, judged(higher / len(known)))


def architectures(evidence: Evidence) -> Judgement:
    groups: dict[str, list[bool]] = {}
    for one in evidence.settings():
        if (won := one.won()) is not None:
            groups.setdefault("ViT" if one.model.startswith("vit") else "ResNet", []).append(won)
    if not groups:
        return UNKNOWN
    told = "; ".join(f"{kind}: lowest in {sum(won)} of {len(won)}" for kind, won in sorted(groups.items()))
    every = all(2 * sum(won) > len(won) for won in groups.values())
    return Judgement(told, "confirmed" if every and len(groups) > 1 else "partly")


def collapse_eased(evidence: Evidence) -> Judgement:
    """ECE of SICL with and without its guard where TENT was driven to collapse."""
    records = [r for r in evidence.run("resnet18-collapse") if r.method == "tent, lr 0.02"]
    rows = _rows([records], ("sicl", "sicl, no guard", "softmax"), "ece")
    if not rows:
        return UNKNOWN
    ours, theirs, softmax = rows[0]
    text = f"{theirs:.1f} without, {ours:.1f} with (softmax {softmax:.1f})"
    return Judgement(text, "confirmed" if ours < theirs else "refuted")


def harder(evidence: Evidence) -> Judgement:
    means = {}
    for stream in ("benign", "dynamic"):
        chosen = evidence.settings(*RESNET18, "resnet18-dynamic", stream=stream)
        values = [one.ece[name] for one in chosen for name in COMPARED if name in one.ece]
        if not values:
            return UNKNOWN
        means[stream] = mean(values)
    verdict: Verdict = "confirmed" if means["dynamic"] > means["benign"] + 1 else "refuted"
    return Judgement(f"the four: benign {means['benign']:.1f}, dynamic {means['dynamic']:.1f} %", verdict)


def imagenet(evidence: Evidence) -> Judgement:
    records = evidence.run("imagenet-resnet50")
    ours, others = (
        mean_percent(records, "sicl", "ece"),
        {n: mean_percent(records, n, "ece") for n in ("softmax", "pseudocal")},
    )
    known = {name: value for name, value in others.items() if value is not None}
    if ours is None or not known:
        return UNKNOWN
    told = ", ".join(f"{calibrator_name(name)} {value:.1f}" for name, value in known.items())
    verdict: Verdict = "confirmed" if ours < min(known.values()) else "partly"
    return Judgement(f"1,000 images: SICL {ours:.1f}, {told}", verdict)


def said(evidence: Evidence, ours: str, verdict: Verdict) -> Judgement:
    """What needs no records: the code, or the paper's own text."""
    return Judgement(ours, verdict)
