"""The outcome as one self-contained HTML page: how good, how sure, what to look at first."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import numpy as np
from PIL import Image

from sicl.bench.report.charts import reliability_diagram
from sicl.bench.report.page import DARK, MOON, POLICY
from sicl.bench.tables.pool import Bins
from sicl.bench.tables.svg import Frame, Scale, number, tag, text
from sicl.errors import DataError
from sicl.predict.outcome import Outcome, Row
from sicl.predict.pictures import open_picture

GALLERY = 12
THUMBNAIL = 160
BINS = 20
MOST_CLASSES = 12


def predict_page(outcome: Outcome, folder: Path, title: str) -> str:
    """Return the page; pictures are read from `folder` and embedded small."""
    if not outcome.read:
        sections = [("unread", "Unreadable files", _unread(outcome))]
    else:
        order = sorted(outcome.read, key=lambda row: row.confidence)
        least, most = order[:GALLERY], order[::-1][:GALLERY]
        sections = [
            ("first", "Look at these first", _first(outcome, least, folder)),
            ("sure", "How sure is it?", _sure(outcome)),
            ("truth", "Against the truth", _truth(outcome)),
            ("most", "Most trusted", _gallery(most, folder)),
            ("unread", "Unreadable files", _unread(outcome)),
        ]
    sections.append(("about", "How this was made", _about(outcome)))
    shown = [section for section in sections if section[2]]
    links = tag("nav", "".join(tag("a", head, href=f"#{key}") for key, head, _ in shown))
    notes = "".join(tag("p", escape(note), class_="note", role="note") for note in warnings_of(outcome))
    toggle = tag("button", MOON, class_="theme", type="button", aria_label="Switch between light and dark")
    head = tag("h1", escape(title)) + tag("p", escape(_lede(outcome)), class_="soft") + notes + links
    body = "".join(tag("section", tag("h2", name) + content, id=key) for key, name, content in shown)
    foot = tag(
        "footer", f"Made by sicl {escape(str(outcome.facts.get('version', '')))}; this page needs no network."
    )
    top = tag("div", tag("div", head) + toggle, class_="bar-top")
    return _document(title, top + tag("main", _facts(outcome) + body) + foot)


def warnings_of(outcome: Outcome) -> list[str]:
    """Return what a reader must know before believing the numbers, one sentence each."""
    notes = []
    if not outcome.read:
        return ["No picture could be read."]
    if outcome.alarm:
        n = sum(bool(row.alarm) for row in outcome.rows)
        notes.append(f"Alarm: {outcome.alarm} {n:,} pictures came under it; none of them is accepted.")
    if not outcome.accepted and not outcome.alarm:
        whose = "labelled picture" if outcome.bounded_by_labels else "picture"
        notes.append(f"Nothing is accepted: no group of {whose}s is sure enough for {outcome.promise}.")
    if outcome.estimate.accuracy < 0.5:
        notes.append("The model is expected to be wrong on more than half of these pictures.")
    names = [row.name for row in outcome.read]
    top = max(set(names), key=names.count)
    if len(names) >= 50 and names.count(top) > 0.9 * len(names):
        notes.append(
            f"{names.count(top) / len(names):.0%} of the pictures are called {top}: collapse, or a folder of one class."
        )
    if outcome.unread:
        many = "1 file" if len(outcome.unread) == 1 else f"{len(outcome.unread):,} files"
        notes.append(f"{many} could not be read; see the end of the page.")
    return notes


def _document(title: str, body: str) -> str:
    house, own = files("sicl.bench.report").joinpath("assets"), files("sicl.predict").joinpath("assets")
    dark = f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{{DARK}}} }}\n"
    dark = f"@media screen {{ {dark} :root[data-theme=dark] {{{DARK}}} }}"
    style = house.joinpath("report.css").read_text(encoding="utf-8").replace("/*dark*/", dark)
    style += own.joinpath("predict.css").read_text(encoding="utf-8")
    script = house.joinpath("report.js").read_text(encoding="utf-8")
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>{escape(title)}</title><style>{style}</style>"
    )
    tail = f'<div id="tip" hidden></div><script>{script}</script>'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>{body}{tail}</body></html>\n'


def _lede(outcome: Outcome) -> str:
    facts = outcome.facts
    parts = [f"{len(outcome.rows):,} pictures", f"model {facts.get('called', facts.get('model', '?'))}"]
    method = facts.get("method", "source")
    parts.append("not adapted" if method == "source" else f"adapted by {method}")
    return " · ".join([*parts, f"confidence by {facts.get('calibrator', '?')}"])


def _fact(head: str, value: str, note: str, *, hero: bool = False) -> str:
    content = tag("span", escape(head)) + tag("b", value) + tag("span", escape(note))
    return tag("div", content, class_="fact hero c-sicl" if hero else "fact")


def _share(value: float) -> str:
    return f"{100 * value:.1f}<small> %</small>"


def _facts(outcome: Outcome) -> str:
    if not outcome.read:
        return ""
    estimate, accepted, n = outcome.estimate, len(outcome.accepted), len(outcome.read)
    between = f"between {100 * estimate.low:.0f} and {100 * estimate.high:.0f} %, without any label"
    cards = [_fact("Estimated accuracy", _share(estimate.accuracy), between, hero=True)]
    if outcome.accuracy is not None:
        cards.append(
            _fact(
                "Measured accuracy", _share(outcome.accuracy), f"on {len(outcome.known):,} labelled pictures"
            )
        )
    floor = (
        f"{accepted:,} pictures, confidence {outcome.threshold:.2f} and up"
        if accepted
        else "nothing qualifies"
    )
    cards.append(_fact(f"Accepted at {outcome.promise}", _share(accepted / n), floor))
    if outcome.realised_risk is not None:
        cards.append(
            _fact(
                "Wrong among the accepted",
                _share(outcome.realised_risk),
                f"promised: {100 * outcome.risk:g} %",
            )
        )
    few = max(1, round(0.1 * n))
    found = f"{100 * outcome.share_of_errors(few):.0f}<small> %</small>"
    cards.append(_fact("Errors in the least trusted tenth", found, f"expected, in {few:,} pictures"))
    return tag("div", "".join(cards), class_="facts")


def _first(outcome: Outcome, least: Sequence[Row], folder: Path) -> str:
    doubt = float(np.sum(1 - outcome.confidence))
    half = next((k for k in range(1, len(outcome.read) + 1) if outcome.share_of_errors(k) >= 0.5), 0)
    lede = (
        f"About {doubt:,.0f} of {len(outcome.read):,} predictions are expected to be wrong, half of them among the "
        f"{half:,} least trusted. The dozen to begin with:"
    )
    parts = [tag("p", lede, class_="lede"), _gallery(least, folder)]
    strange = sorted(
        (row for row in outcome.read if row.familiarity is not None), key=lambda row: row.familiarity or 0
    )
    strange = [row for row in strange if (row.familiarity or 0) <= 0.01 and row not in least][:6]
    if strange and outcome.facts.get("source") is not None:
        said = tag(
            "span", "less like the source pictures than 99 % of these are like each other", class_="soft"
        )
        parts.append(tag("h3", f"Strange pictures {said}") + _gallery(strange, folder))
    return "".join(parts)


def _gallery(rows: Sequence[Row], folder: Path) -> str:
    return tag("div", "".join(_figure(row, folder) for row in rows), class_="gallery")


def _figure(row: Row, folder: Path) -> str:
    mark = ""
    if row.correct is not None:
        mark = tag(
            "em",
            "right" if row.correct else f"is {escape(row.truth)}",
            class_="minus" if row.correct else "plus",
        )
    meter = tag("i", "", style=f"width:{100 * row.confidence:.0f}%")
    line = tag("b", escape(row.name)) + tag("span", f"{100 * row.confidence:.0f} %")
    caption = tag("div", line, class_="line") + tag("div", meter, class_="meter") + mark
    caption += tag("small", escape(row.file), title=row.file)
    return tag("figure", _thumbnail(folder / row.file, row.file) + tag("figcaption", caption))


def _thumbnail(path: Path, name: str) -> str:
    try:
        picture = open_picture(path)
    except DataError:  # Gone since it was predicted.
        return tag("div", "", class_="missing")
    if max(picture.size) < THUMBNAIL:
        scale = THUMBNAIL // max(picture.size) or 1
        picture = picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    out = io.BytesIO()
    picture.save(out, "WEBP", quality=80)
    data = base64.b64encode(out.getvalue()).decode()
    return f'<img src="data:image/webp;base64,{data}" alt="{escape(name)}" loading="lazy">'


def _histogram(outcome: Outcome) -> str:
    counts, edges = np.histogram(outcome.confidence, bins=BINS, range=(0, 1))
    top = max(1, int(counts.max()))
    frame = Frame(460, 236, Scale(0, 1, 34, 452), Scale(0, top, 204, 18))
    parts = [
        frame.axes((0, 0.25, 0.5, 0.75, 1), (0, top), lambda v: f"{100 * v:.0f} %", lambda v: f"{v:,.0f}")
    ]
    for count, left, right in zip(counts, edges, edges[1:]):
        if count:
            x, width, y = frame.x(left) + 1, frame.x(right) - frame.x(left) - 2, frame.y(float(count))
            kind = (
                "bar"
                if left >= outcome.threshold - 1e-9
                else "bar part"
                if right > outcome.threshold
                else "bar faint"
            )
            tip = f"confidence {100 * left:.0f} to {100 * right:.0f} %: {count:,} pictures"
            parts.append(tag("rect", x=x, y=y, width=width, height=204 - y, rx=2, class_=kind, data_t=tip))
    if math.isfinite(outcome.threshold):
        place = frame.x(outcome.threshold)
        parts.append(tag("path", d=f"M{number(place)} 10V204", class_="diagonal"))
        side = "end" if place > 300 else None
        parts.append(
            text(
                f"accepted from {outcome.threshold:.2f}",
                place + (-6 if side else 6),
                12,
                class_=f"title {side or ''}",
            )
        )
    chart = frame.svg("".join(parts), "Histogram of confidence", class_="lines c-sicl")
    said = tag("span", "accepted ones are solid")
    return tag("figure", tag("figcaption", "Pictures by confidence" + said) + chart)


def _sure(outcome: Outcome) -> str:
    classes = tag("figure", tag("figcaption", "By predicted class") + _classes(outcome))
    said = "Confidence is the calibrated chance that a label is right."
    if all(row.name == str(row.label) for row in outcome.read):
        said += (
            " The model does not name its classes, so they are numbers; --classes FILE gives a name a line."
        )
    lede = tag("p", said, class_="lede")
    return lede + tag("div", _histogram(outcome) + classes, class_="charts")


def _truth(outcome: Outcome) -> str:
    if not outcome.known:
        return ""
    found = outcome.reliability()
    columns = (found.lower, found.upper, found.count.double(), found.confidence, found.accuracy)
    bins = Bins(*(column.numpy() for column in columns))
    rows = []
    for risk in sorted({0.01, 0.02, 0.05, 0.1, 0.2, outcome.risk}):
        at = Outcome.of(outcome.rows, risk, delta=outcome.delta)
        realised = "none" if at.realised_risk is None else f"{100 * at.realised_risk:.1f}"
        share = f"{100 * len(at.accepted) / len(outcome.read):.0f}"
        own = "own" if risk == outcome.risk else None
        rows.append(
            tag("tr", "".join(tag("td", cell, class_=own) for cell in (f"{100 * risk:g}", realised, share)))
        )
    heads = tag("tr", "".join(tag("th", head) for head in ("Promised risk %", "Realised %", "Accepted %")))
    table = tag("table", tag("thead", heads) + tag("tbody", "".join(rows)))
    estimate = (
        f"Estimated {100 * outcome.estimate.accuracy:.1f} %, measured {100 * (outcome.accuracy or 0):.1f} %; "
    )
    said = f"{estimate}calibration error (ECE) {100 * bins.ece:.1f} %, over {len(outcome.known):,} labelled pictures."
    figure = tag(
        "figure", tag("figcaption", "Accuracy against confidence") + reliability_diagram(bins, "sicl")
    )
    risks = tag("figure", tag("figcaption", "Risk: promised and kept") + tag("div", table))
    return tag("p", said, class_="lede") + tag("div", figure + risks, class_="charts truth")


def _classes(outcome: Outcome) -> str:
    groups: dict[str, list[Row]] = {}
    for row in outcome.read:
        groups.setdefault(row.name, []).append(row)
    rows = []
    for name, members in sorted(groups.items(), key=lambda item: -len(item[1]))[:MOST_CLASSES]:
        sure = float(np.mean([row.confidence for row in members]))
        taken = sum(row.accepted for row in members) / len(members)
        meter = tag("div", tag("i", "", style=f"width:{100 * sure:.0f}%"), class_="meter")
        cells = tag("td", escape(name), class_="l") + tag("td", f"{len(members):,}")
        rows.append(
            tag(
                "tr",
                cells
                + tag("td", f"{100 * sure:.0f}")
                + tag("td", meter, class_="wide-cell")
                + tag("td", f"{100 * taken:.0f}"),
            )
        )
    left = len(groups) - len(rows)
    more = tag("p", f"{left:,} more classes are in predictions.csv.", class_="soft") if left > 0 else ""
    heads = tag("th", "Predicted class", class_="l")
    heads += "".join(tag("th", head) for head in ("Pictures", "Confidence %", "", "Accepted %"))
    table = tag("table", tag("thead", tag("tr", heads)) + tag("tbody", "".join(rows)))
    return tag("div", table, class_="classes") + more


def _unread(outcome: Outcome) -> str:
    rows = [tag("dt", escape(row.file)) + tag("dd", escape(row.note)) for row in outcome.unread[:200]]
    more = len(outcome.unread) - len(rows)
    return (
        tag("dl", "".join(rows)) + (tag("p", f"and {more:,} more in predictions.csv") if more > 0 else "")
        if rows
        else ""
    )


def _about(outcome: Outcome) -> str:
    said = (
        "The estimated accuracy is the mean confidence. Its interval (95 %) allows for chance, and for a confidence "
        "that is off for the folder as a whole as far as it was on streams it was tried on, which is an assumption. "
        f"Accepted are as many pictures as can be at {outcome.promise}, "
    )
    said += (
        "as the labelled ones show."
        if outcome.bounded_by_labels
        else "by their mean doubt (1 less confidence)."
    )
    if outcome.delta is None:
        said += " Of single folders about every second errs more often than the mean: --delta 0.1 allows one in ten."
    if outcome.facts.get("source") is None:
        said += (
            " Without pictures of the kind the model knows (--source), a folder that is strange as a whole "
        )
        said += "is not recognised."
    facts = "".join(
        tag("dt", escape(k)) + tag("dd", escape(str(v)))
        for k, v in outcome.facts.items()
        if v != "" and k != "called"
    )
    return tag("p", said, class_="lede") + tag("dl", facts)
