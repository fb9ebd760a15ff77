"""User text in tables: labels and errors are written, never read as markup, a formula or a command."""

from __future__ import annotations

import re

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


def _one_line(text: str) -> str:
    return " ".join(text.split())
