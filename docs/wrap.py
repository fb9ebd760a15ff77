"""Wrap the prose of pages at 110 columns: `python docs/wrap.py [--check] PAGE...`.

Only paragraphs with a longer line are touched; tables, headings, code, HTML and lines that are one link stay.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

WIDTH = 110
MARK = re.compile(r"(\s*)((?:[-*+]|\d+\.)\s+)?")
APART = ("|", "#", "<", "!", ">", "$$", "---", ":::", "[^")
"""How a line begins that is no prose."""


def wrapped(text: str) -> str:
    """Return a page with its long paragraphs wrapped."""
    out: list[str] = []
    paragraph: list[str] = []
    fence = False
    for line in [*text.splitlines(), ""]:
        bare = line.strip()
        special = fence or not bare or bare.startswith(("```", "~~~", *APART))
        if special or _is_item(line) or (paragraph and paragraph[-1].endswith("  ")):
            out += _wrap(paragraph)
            paragraph = []
        fence ^= bare.startswith(("```", "~~~"))
        if special:
            out.append(line)
        else:
            paragraph.append(line)
    return "\n".join([*out, *_wrap(paragraph)][:-1]) + "\n"


def _is_item(line: str) -> bool:
    found = MARK.match(line)
    return bool(found and found[2])


def _wrap(lines: list[str]) -> list[str]:
    if max(map(len, lines), default=0) <= WIDTH:
        return lines
    found = MARK.match(lines[0])
    first = found[0] if found else ""
    later = " " * len(first)
    words = " ".join(line.strip() for line in lines)[len(first.strip()) + bool(first.strip()) :]
    whole = {"break_long_words": False, "break_on_hyphens": False}
    # At the start of a line a number with a full stop would be read as the next item of a list.
    words = re.sub(r" (?=(?:[-*+]|\d+\.) )", "\0", words)
    out = textwrap.wrap(words, WIDTH, initial_indent=first, subsequent_indent=later, **whole)
    return [line.replace("\0", " ") for line in out]


def main(arguments: list[str]) -> int:
    """Wrap the pages, or say which are not."""
    wrong = []
    for page in map(Path, (argument for argument in arguments if argument != "--check")):
        text = page.read_text(encoding="utf-8")
        if wrapped(text) != text:
            wrong.append(str(page))
            if "--check" not in arguments:
                page.write_text(wrapped(text), encoding="utf-8")
    if "--check" in arguments and wrong:
        sys.stderr.write(f"not wrapped at {WIDTH}: {', '.join(wrong)}; run `python docs/wrap.py PAGE`.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
