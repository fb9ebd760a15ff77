"""How each claim of the paper is measured on our records."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from statistics import mean

from sicl.bench.paper.evidence import (
    ENTROPY,
    MAIN,
    RESNET18,
    UNKNOWN,
    Answer,
    Evidence,
    Verdict,
    by,
    difference,
    ece,
    growth,
    judged,
    raw,
)
from sicl.bench.run.schema import Record
from sicl.bench.tables.layout import COMPARED
from sicl.bench.tables.names import calibrator_name, method_name
from sicl.bench.tables.printed import inconsistencies, paper_wins

Measure = Callable[[Evidence], Answer]


def points_lower(stream: str | None, printed: float) -> Measure:
    """Points by which SICL is below the mean of the four others."""

    def measure(evidence: Evidence) -> Answer:
        gaps = [gap for one in evidence.settings(stream=stream) if (gap := one.gap()) is not None]
        if not gaps:
            return UNKNOWN
        verdict: Verdict = "confirmed" if mean(gaps) >= printed else "partly" if mean(gaps) > 0 else "refuted"
        return Answer(f"{mean(gaps):.1f} points lower, {len(gaps)} settings", verdict)

    return measure


def wins(evidence: Evidence) -> Answer:
    won = [one.won() for one in evidence.settings() if one.won() is not None]
    if not won:
        return UNKNOWN
    share = sum(map(bool, won)) / len(won)
    verdict: Verdict = "confirmed" if share >= 63 / 72 else "partly" if share > 0.5 else "refuted"
    return Answer(f"{sum(map(bool, won))} of {len(won)}", verdict)


def printed_wins(evidence: Evidence) -> Answer:
    won, total = paper_wins()
    return Answer(f"its table has {won} of {total}", "partly" if won != 63 else "confirmed")


def printed_means(evidence: Evidence) -> Answer:
    wrong = len(inconsistencies())
    return Answer(f"{wrong} of 80 are not", "refuted" if wrong else "confirmed")


def table(run: str, calibrator: str, tolerance: float) -> Measure:
    """Mean ECE beside the mean of what is printed."""

    def measure(evidence: Evidence) -> Answer:
        records = evidence.run(run)
        ours, differences = ece(records, calibrator), difference(records, calibrator)
        if ours is None or not differences:
            return UNKNOWN
        printed = ours - mean(differences)
        worst = max(differences)
        verdict: Verdict = "confirmed" if mean(differences) <= tolerance else "refuted"
        if verdict == "confirmed" and worst > tolerance:
            verdict = "partly"
        return Answer(f"{ours:.1f} (printed {printed:.1f})", verdict)

    return measure


def reproduces(calibrator: str) -> Measure:
    """How far a baseline is from its printed numbers, over both ResNet-18 tables."""

    def measure(evidence: Evidence) -> Answer:
        found = [d for run in RESNET18 for d in difference(evidence.run(run), calibrator)]
        if not found:
            return UNKNOWN
        near = sum(abs(d) <= 3 for d in found)
        text = f"{min(found):+.1f} to {max(found):+.1f} points; within 3 in {near} of {len(found)}"
        return Answer(text, judged(near / len(found)))

    return measure


def first_last(evidence: Evidence) -> Answer:
    lines = _lines(evidence, "batchnorm", "continual")
    if not lines:
        return UNKNOWN
    first, last = (f"{100 * line:.0f}" for line in (lines["ece"][0], lines["ece"][-1]))
    said = [100 * (lines["confidence"][i] - lines["accuracy"][i]) for i in (0, -1)]
    text = f"ECE {first} and {last} %, bias {said[0]:+.0f} and {said[1]:+.0f}"
    alike = abs(lines["ece"][0] - lines["ece"][-1]) < 0.05
    return Answer(text, "confirmed" if alike and abs(said[0] - said[1]) > 5 else "partly")


def _lines(evidence: Evidence, method: str, stream: str) -> dict[str, list[float]]:
    for record in evidence.run("figure2"):
        if record.method == method and record.stream == stream:
            found: dict[str, list[float]] = record.calibrators["softmax"]["over_time"]
            return found
    return {}


def swings(evidence: Evidence) -> Answer:
    lines = _lines(evidence, "batchnorm", "continual")
    if not lines:
        return UNKNOWN
    low, high = 100 * min(lines["ece"]), 100 * max(lines["ece"])
    return Answer(f"{low:.0f} to {high:.0f} %", "confirmed" if high > 2 * low else "partly")


def threefold(evidence: Evidence) -> Answer:
    wanted = (r for r in evidence.run("table3") if (r.method, r.corruption) == ("tent", "gaussian_noise"))
    found = [pair for r in wanted if (pair := growth(r)) is not None]
    if not found:
        return UNKNOWN
    first, last = (mean(pair[i] for pair in found) for i in (0, 1))
    verdict: Verdict = "confirmed" if last >= 2.5 * first else "partly" if last > 1.2 * first else "refuted"
    return Answer(f"{first:.1f} to {last:.1f} %: x {last / first:.1f}", verdict)


def grows(run: str, stream: str) -> Measure:
    """The softmax's ECE in the first and the last quarter of a stream, under entropy minimisation."""

    def measure(evidence: Evidence) -> Answer:
        records = [r for r in evidence.run(run) if r.method in ENTROPY and r.stream == stream]
        found = [pair for r in records if (pair := growth(r)) is not None]
        if not found:
            return UNKNOWN
        first, last = (mean(pair[i] for pair in found) for i in (0, 1))
        more = sum(after > before for before, after in found)
        verdict: Verdict = "confirmed" if more == len(found) and last > first + 2 else "partly"
        if last < first + 1:
            verdict = "refuted"
        return Answer(f"{first:.1f} to {last:.1f} %, rises in {more} of {len(found)} streams", verdict)

    return measure


def content_noise(evidence: Evidence) -> Answer:
    style, content = (ece(evidence.run("figure3"), name, "ece") for name in ("style", "content"))
    if style is None or content is None:
        return UNKNOWN
    ratio = content / style
    verdict: Verdict = "confirmed" if ratio >= 4 else "partly" if ratio > 1.5 else "refuted"
    return Answer(f"{content:.1f} against {style:.1f} %: x {ratio:.1f}", verdict)


def variance_below(run: str, key: str, low: str, high: Sequence[str]) -> Measure:
    """In how many corruptions one perturbation's variance is below all others'."""

    def measure(evidence: Evidence) -> Answer:
        records = evidence.run(run)
        groups = by(records, lambda r: r.corruption or "")
        rows = [[raw(part, name, key) for name in (low, *high)] for part in groups.values()]
        known = [[v for v in row if v is not None] for row in rows if None not in row]
        if not known:
            return UNKNOWN
        held = sum(row[0] < min(row[1:]) for row in known)
        means = [mean(row[i] for row in known) for i in range(len(high) + 1)]
        told = ", ".join(f"{name} {value:.3g}" for name, value in zip((low, *high), means))
        return Answer(f"{told}; in {held} of {len(known)}", judged(held / len(known)))

    return measure


def style_wins(evidence: Evidence) -> Answer:
    groups = by(evidence.run("figure3"), lambda r: r.corruption or "")
    names = ("style", "mixstyle", "dropout")
    rows = [[raw(part, name, "style_variance") for name in names] for part in groups.values()]
    known = [[v for v in row if v is not None] for row in rows if None not in row]
    if not known:
        return UNKNOWN
    held = sum(row[0] > max(row[1:]) for row in known)
    told = ", ".join(f"{n} {mean(row[i] for row in known):.3g}" for i, n in enumerate(names))
    return Answer(f"{told}; in {held} of {len(known)}", judged(held / len(known)))


def lowest_for_methods(run: str, name: str, others: Sequence[str]) -> Measure:
    """For how many methods a calibrator is below others."""

    def measure(evidence: Evidence) -> Answer:
        groups = by(evidence.run(run), lambda r: r.method)
        rows = [[ece(part, label) for label in (name, *others)] for part in groups.values()]
        known = [[v for v in row if v is not None] for row in rows if None not in row]
        if not known:
            return UNKNOWN
        held = sum(row[0] < min(row[1:]) for row in known)
        means = [mean(row[i] for row in known) for i in range(len(others) + 1)]
        told = ", ".join(f"{calibrator_name(n)} {v:.1f}" for n, v in zip((name, *others), means))
        return Answer(f"{told}; for {held} of {len(known)} methods", judged(held / len(known)))

    return measure


def gain_by_method(evidence: Evidence) -> Answer:
    groups = by(evidence.run("figure6"), lambda r: r.method)
    gains = {}
    for method, part in groups.items():
        plain, relaxed = ece(part, "style votes"), ece(part, "sicl_paper")
        if plain is not None and relaxed is not None:
            gains[method] = plain - relaxed
    if not {"sar", "sotta", "tent"} <= gains.keys():
        return UNKNOWN
    told = ", ".join(f"{method_name(name)} {gain:+.0f}" for name, gain in gains.items())
    if max(gains.values()) <= 0:
        return Answer(f"no gain to compare: {told}", "refuted")
    robust = max(gains["sar"], gains["sotta"])
    others = min(gain for name, gain in gains.items() if name not in ("sar", "sotta"))
    return Answer(f"gain {told}", "confirmed" if robust < others else "refuted")


def few_variants(evidence: Evidence) -> Answer:
    found = ece(evidence.run("figure6"), "style votes, N = 5")
    if found is None:
        return UNKNOWN
    return Answer(f"{found:.1f} % (style votes alone)", "confirmed" if found < 10 else "refuted")


def more_variants(evidence: Evidence) -> Answer:
    records = evidence.run("figure6")
    labels = {n: "style votes" if n == 20 else f"style votes, N = {n}" for n in (5, 10, 15, 20, 30, 40)}
    values = [value for label in labels.values() if (value := ece(records, label)) is not None]
    if len(values) < len(labels):
        return UNKNOWN
    falls = all(after <= before + 0.05 for before, after in itertools.pairwise(values))
    text = f"{values[0]:.1f} at 5, {values[3]:.1f} at 20, {values[-1]:.1f} at 40"
    return Answer(text, "confirmed" if falls and values[-1] < values[0] - 0.2 else "partly")


def severity_rises(key: str) -> Measure:
    """Whether the softmax's ECE of right or wrong predictions rises with the severity."""

    def measure(evidence: Evidence) -> Answer:
        groups = by(evidence.run("figure7ab"), lambda r: str(r.severity))
        values = [v for level in "12345" if (v := ece(groups.get(level, []), "softmax", key)) is not None]
        if len(values) < 3:
            return UNKNOWN
        steps = len(values) - 1
        rises = sum(after > before for before, after in itertools.pairwise(values))
        text = f"{values[0]:.1f} at severity 1, {values[-1]:.1f} at 5; rises in {rises} of {steps} steps"
        return Answer(text, judged(rises / steps))

    return measure


def layers(evidence: Evidence) -> Answer:
    records = evidence.run("figure7c")
    values = [v for i in (1, 2, 3, 4) if (v := ece(records, f"style votes, layer{i}")) is not None]
    if len(values) < 4:
        return UNKNOWN
    told = ", ".join(f"{value:.1f}" for value in values)
    alike, far = max(values[:3]) - min(values[:3]) < 3, values[3] > max(values[:3]) + 3
    return Answer(f"style votes {told}", "confirmed" if alike and far else "partly" if far else "refuted")


def ood(evidence: Evidence) -> Answer:
    from sicl.corruptions import CATEGORIES

    kinds = {name: category for category, names in CATEGORIES.items() for name in names}
    groups = by(evidence.run("figure8a"), lambda r: kinds.get(r.corruption or "", "other"))
    names = ("sicl", "softmax", *COMPARED)
    rows = {kind: [ece(part, name, "ood_auroc") for name in names] for kind, part in groups.items()}
    known = {k: [v for v in row if v is not None] for k, row in rows.items() if None not in row}
    if not known:
        return UNKNOWN
    held = sum(row[0] > max(row[1:]) for row in known.values())
    ours, best = mean(row[0] for row in known.values()), mean(max(row[1:]) for row in known.values())
    return Answer(
        f"SICL {ours:.1f}, best other {best:.1f}; in {held} of {len(known)} categories",
        judged(held / len(known)),
    )


def sotta_gains(evidence: Evidence) -> Answer:
    recorded = evidence.run("figure8b")
    records = [r for r in recorded if r.stream == "noisy, mnist"]
    means = {
        name: 100 * mean(r.accuracy or 0.0 for r in part)
        for name, part in by(records, lambda r: r.method).items()
    }
    if not {"sotta", "sotta+sicl"} <= means.keys():
        return UNKNOWN
    gain = means["sotta+sicl"] - means["sotta"]
    verdict: Verdict = "confirmed" if gain >= 0.5 else "partly" if gain > 0 else "refuted"
    return Answer(f"{means['sotta']:.1f} to {means['sotta+sicl']:.1f} %{_on_noise(recorded)}", verdict)


def _on_noise(records: Sequence[Record]) -> str:
    groups = by((r for r in records if r.stream == "noisy, noise"), lambda r: r.method)
    if not {"sotta", "sotta+sicl"} <= groups.keys():
        return ""
    first, last = (100 * mean(r.accuracy or 0.0 for r in groups[name]) for name in ("sotta", "sotta+sicl"))
    return f" (uniform noise: {first:.1f} to {last:.1f})"


def same_labels(evidence: Evidence) -> Answer:
    records = [r for r in evidence.run(*MAIN) if "sicl" in r.calibrators]
    if not records:
        return UNKNOWN
    same = sum(r.calibrators["sicl"]["accuracy"] == r.accuracy for r in records)
    return Answer(f"the same in {same} of {len(records)} cells", judged(same / len(records)))


def ranks(evidence: Evidence) -> Answer:
    records = evidence.run(*MAIN)
    pairs = [
        (r.calibrators["softmax"]["auroc"], r.calibrators["sicl"]["auroc"])
        for r in records
        if {"softmax", "sicl"} <= r.calibrators.keys()
    ]
    known = [pair for pair in pairs if None not in pair]
    if not known:
        return UNKNOWN
    higher = sum(ours > plain for plain, ours in known)
    means = [100 * mean(pair[i] for pair in known) for i in (0, 1)]
    text = f"AUROC {means[0]:.1f} to {means[1]:.1f}, higher in {higher} of {len(known)} cells"
    return Answer(text, judged(higher / len(known)))


def architectures(evidence: Evidence) -> Answer:
    groups: dict[str, list[bool]] = {}
    for one in evidence.settings():
        if (won := one.won()) is not None:
            groups.setdefault("ViT" if one.model.startswith("vit") else "ResNet", []).append(won)
    if not groups:
        return UNKNOWN
    told = "; ".join(f"{kind}: lowest in {sum(won)} of {len(won)}" for kind, won in sorted(groups.items()))
    every = all(2 * sum(won) > len(won) for won in groups.values())
    return Answer(told, "confirmed" if every and len(groups) > 1 else "partly")


def collapse_eased(calibrator: str, other: str) -> Measure:
    """ECE of two calibrators where TENT was driven to collapse."""

    def measure(evidence: Evidence) -> Answer:
        records = [r for r in evidence.run("resnet18-collapse") if r.method == "tent, lr 0.02"]
        ours, theirs, softmax = (ece(records, name, "ece") for name in (calibrator, other, "softmax"))
        if ours is None or theirs is None or softmax is None:
            return UNKNOWN
        text = f"{theirs:.1f} without, {ours:.1f} with (softmax {softmax:.1f})"
        return Answer(text, "confirmed" if ours < theirs else "refuted")

    return measure


def harder(evidence: Evidence) -> Answer:
    means = {}
    for stream in ("benign", "dynamic"):
        chosen = [one for one in evidence.settings(*RESNET18, "resnet18-dynamic") if one.stream == stream]
        values = [one.ece[name] for one in chosen for name in COMPARED if name in one.ece]
        if not values:
            return UNKNOWN
        means[stream] = mean(values)
    verdict: Verdict = "confirmed" if means["dynamic"] > means["benign"] + 1 else "refuted"
    return Answer(f"the four: benign {means['benign']:.1f}, dynamic {means['dynamic']:.1f} %", verdict)


def imagenet(evidence: Evidence) -> Answer:
    records: list[Record] = evidence.run("imagenet-resnet50")
    ours, others = ece(records, "sicl", "ece"), {n: ece(records, n, "ece") for n in ("softmax", "pseudocal")}
    known = {name: value for name, value in others.items() if value is not None}
    if ours is None or not known:
        return UNKNOWN
    told = ", ".join(f"{calibrator_name(name)} {value:.1f}" for name, value in known.items())
    verdict: Verdict = "confirmed" if ours < min(known.values()) else "partly"
    return Answer(f"1,000 images: SICL {ours:.1f}, {told}", verdict)


def said(ours: str, verdict: Verdict) -> Measure:
    """What needs no records: the code, or the paper's own text."""
    return lambda evidence: Answer(ours, verdict)
