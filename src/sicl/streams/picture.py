"""Draw a stream over time as an SVG: one row a domain, a bar where its samples arrive."""

from __future__ import annotations

from html import escape

from sicl.corruptions import CATEGORIES
from sicl.errors import InputError
from sicl.streams.plan import Plan, runs

_COLOURS = ("#4269d0", "#e8743b", "#3ca951", "#9c6bd6", "#6b7280", "#b45309")
_ROW, _LEFT, _TOP, _WIDTH, _BOTTOM = 20, 150, 34, 760, 40


def draw(plan: Plan, *, title: str = "", batch_size: int | None = None) -> str:
    """Return the SVG text of a plan.

    Args:
        plan: what to draw, for example `Dynamic().plan(dataset)`.
        title: written above.
        batch_size: also counts batches in the caption of the time axis.
    """
    if len(plan) == 0:
        raise InputError("`plan` must have at least one sample to draw.")
    height = _TOP + _ROW * len(plan.domains) + _BOTTOM
    scale = _WIDTH / len(plan)
    colours = _domain_colours(plan.domains)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20} {height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12">',
        f"<title>{escape(title or 'A stream over time')}</title>",
        f'<rect width="{_LEFT + _WIDTH + 20}" height="{height}" fill="#ffffff"/>',
        f'<text x="{_LEFT}" y="20" font-size="14" fill="#111827">{escape(title)}</text>',
    ]
    for row, domain in enumerate(plan.domains):
        y = _TOP + _ROW * row
        lines.append(f'<rect x="{_LEFT}" y="{y + 2}" width="{_WIDTH}" height="{_ROW - 4}" fill="#f3f4f6"/>')
        lines.append(
            f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end" fill="#374151">{escape(domain)}</text>'
        )
    for start, length, domain_id in runs(plan.domain_ids):
        lines.append(
            f'<rect x="{_LEFT + start * scale:.2f}" y="{_TOP + _ROW * domain_id + 2}" '
            f'width="{max(0.4, length * scale):.2f}" height="{_ROW - 4}" fill="{colours[domain_id]}"/>'
        )
    lines += _axis(len(plan), _TOP + _ROW * len(plan.domains), batch_size)
    return "\n".join([*lines, "</svg>", ""])


def _domain_colours(domains: tuple[str, ...]) -> list[str]:
    groups = {name: position for position, names in enumerate(CATEGORIES.values()) for name in names}
    return [_COLOURS[groups.get(domain, len(_COLOURS) - 1) % len(_COLOURS)] for domain in domains]


def _axis(count: int, y: int, batch_size: int | None) -> list[str]:
    caption = f"time: {count:,} samples" + (f" in {-(-count // batch_size):,} batches" if batch_size else "")
    marks = [
        f'<text x="{_LEFT + _WIDTH * part / 4:.0f}" y="{y + 16}" text-anchor="middle" fill="#6b7280">'
        f"{round(count * part / 4):,}</text>"
        for part in range(5)
    ]
    middle = _LEFT + _WIDTH // 2
    return [*marks, f'<text x="{middle}" y="{y + 34}" text-anchor="middle" fill="#374151">{caption}</text>']
