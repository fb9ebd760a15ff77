"""What `overhead.py` measured, for a page: one table of all cases, and one figure of one case."""

from __future__ import annotations

from typing import Any

COLUMNS = {
    "forward": "forward",
    "tent step": "TENT step",
    "naive": "40 naive passes",
    "sicl default": "default",
    "sicl default adaptive": "adaptive",
    "sicl 20+20 frozen": "20 + 20, frozen",
    "sicl 20+20 batch": "20 + 20, batch",
}
"""The ways in the table, and what it calls them."""
_WIDTH, _LEFT, _ROW = 720, 230, 26


def summary(result: dict[str, Any]) -> str:
    """Return one Markdown table, a row a case, in milliseconds, the default in TENT steps too."""
    head = ["network, batch", *COLUMNS.values(), "default / TENT step"]
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for case in result["cases"]:
        ms = {name: row.get("ms") for name, row in case.get("rows", {}).items()}
        cells = [f"{ms[name]:.1f}" if ms.get(name) else "" for name in COLUMNS]
        both = ms.get("sicl default"), ms.get("tent step")
        ratio = f"{both[0] / both[1]:.2f}" if all(both) else ""
        name = f"{case['arch']}, {case['batch']}"
        lines.append(f"| {' | '.join([name, *cells, ratio])} |")
    return "\n".join(lines) + "\n"


def figure(result: dict[str, Any]) -> str:
    """Return the first case as an SVG of bars: milliseconds of every way but the naive loop."""
    case = result["cases"][0]
    bars = [(n, row["ms"]) for n, row in case["rows"].items() if "ms" in row and n != "naive"]
    longest = max(ms for _, ms in bars)
    title = f"{case['arch']}, batch {case['batch']}: milliseconds a batch ({result['environment']['device']})"
    parts = [_text(10, 20, title, weight="bold")]
    for number, (name, ms) in enumerate(bars):
        y = 36 + number * _ROW
        width = (_WIDTH - _LEFT - 70) * ms / longest
        colour = "#4c78a8" if name.startswith("sicl") else "#9aa5b1"
        parts.append(_text(_LEFT - 8, y + 14, name, anchor="end"))
        parts.append(f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_ROW - 8}" fill="{colour}"/>')
        parts.append(_text(_LEFT + width + 6, y + 14, f"{ms:.2f}"))
    height = 44 + _ROW * len(bars)
    open_ = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif">'
    )
    return (
        "\n".join([open_, f'<rect width="{_WIDTH}" height="{height}" fill="white"/>', *parts, "</svg>"])
        + "\n"
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" font-size="13" text-anchor="{anchor}" font-weight="{weight}">{text}</text>'
