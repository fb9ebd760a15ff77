"""How names, numbers and the users' own text are written in a report, the same in every format."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from sicl.data.files import embedded

MISSING = "\N{EN DASH}"
_FILE = embedded("sicl.bench.tables", "names.json")


def _told(noun: str, key: str = "name") -> dict[str, str]:
    """Return what the file tells of each calibrator, method or part that it tells it of."""
    return {name: entry[key] for name, entry in _FILE[noun].items() if key in entry}


CALIBRATOR_NAMES = _told("calibrators")
SHORT_CALIBRATORS = _told("calibrators", "short")
METHODS = _told("methods")
PARTS = _told("parts")
"""Perturbations and parts of a calibrator, in the legends of figures."""
CALIBRATOR_COLOURS = _told("calibrators", "colour")
COLOURS = {**_told("parts", "colour"), **_told("methods", "colour"), **CALIBRATOR_COLOURS}
DATASETS: dict[str, str] = _FILE["datasets"]
MODELS: dict[str, str] = _FILE["models"]
STREAMS = {name: name.capitalize() for name in ("benign", "dynamic", "noisy", "continual", "mixed")}
SHORT_DOMAINS: dict[str, str] = _FILE["corruptions"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A column of a report: its key in a record, how to write it, and which way is better."""

    key: str
    title: str
    help: str
    percent: bool = True
    higher: bool = False

    def text(self, value: float | None) -> str:
        """Return the number as printed, a dash for a missing one."""
        if value is None:
            return MISSING
        return f"{100 * value:.1f}" if self.percent else f"{value:.3f}"

    @property
    def unit(self) -> str:
        """Return " %" for shares, nothing for other numbers."""
        return " %" if self.percent else ""

    @property
    def arrow(self) -> str:
        """Return which way is better."""
        return "↑" if self.higher else "↓"


METRICS = {key: Metric(key, **told) for key, told in _FILE["metrics"].items()}


def calibrator_name(key: str) -> str:
    """Return how a calibrator is written."""
    return CALIBRATOR_NAMES.get(key, _title(key))


def legend_name(key: str) -> str:
    """Return how a calibrator, a method, a part of one or a corruption is written in a figure."""
    known = {**SHORT_DOMAINS, **PARTS, **METHODS, **CALIBRATOR_NAMES}
    first, comma, rest = key.partition(", ")
    return known.get(key, f"{known.get(first, first)}{comma}{rest}")


def short_calibrator(key: str) -> str:
    """Return how a calibrator is written where there is little room."""
    return SHORT_CALIBRATORS.get(key, calibrator_name(key))


def method_name(key: str) -> str:
    """Return how a method is written."""
    return METHODS.get(key, _title(key))


def dataset_name(key: str) -> str:
    """Return how a data set is written."""
    return DATASETS.get(key, key)


def model_name(key: str) -> str:
    """Return how a model is written."""
    return MODELS.get(key, key)


def stream_name(key: str) -> str:
    """Return how a stream is written."""
    return STREAMS.get(key, key)


def domain_name(key: str) -> str:
    """Return how a corruption or other domain is written in full."""
    return _title(key).replace("Jpeg", "JPEG")


def short_domain(key: str) -> str:
    """Return how a corruption is written at the head of a narrow column."""
    return SHORT_DOMAINS.get(key, domain_name(key))


def ordered(keys: set[str], known: tuple[str, ...] | dict[str, str]) -> list[str]:
    """Return the keys in the order of `known`, then the others by name."""
    return sorted(keys, key=lambda key: rank(key, known))


def rank(key: str, known: tuple[str, ...] | dict[str, str]) -> tuple[int, str]:
    """Return what sorts a key: its place in `known`, and its name where it has none."""
    order = list(known)
    return order.index(key) if key in order else len(order), key


def _title(key: str) -> str:
    return key.replace("_", " ").capitalize()


_TEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "\N{EN DASH}": "--",
    "·": "--",
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def tex_text(text: str) -> str:
    """Return text as LaTeX prints it."""
    return "".join(_TEX.get(letter, letter) for letter in _one_line(text))


def csv_text(text: str | None) -> str | None:
    """Return text as a spreadsheet shows it: with an apostrophe before what it would compute."""
    return f"'{text}" if text is not None and text.lstrip().startswith(_FORMULA) else text


def markdown_text(text: str) -> str:
    """Return text as Markdown shows it, in a table's cell too."""
    # An underscore inside a word is one already.
    escaped = re.sub(r"([\\`*\[\]|~$#!]|(?<!\w)_|_(?!\w))", r"\\\1", _one_line(text))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def pipe_table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Container[int] = ()) -> str:
    """Return a Markdown table of cells that are Markdown already; the columns of `right` are aligned right."""
    rule = ["---:" if i in right else "---" for i in range(len(head))]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def _one_line(text: str) -> str:
    return " ".join(text.split())
