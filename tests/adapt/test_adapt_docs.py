"""The code in the two pages of this room runs as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sicl.adapt import METHODS
from sicl.adapt._presets import PAPER, SINCE

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["adding-a-method.md", "methods.md"])
def test_the_pages_code_runs(page: str) -> None:
    """Block after block, in one namespace."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    assert blocks
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, page, "exec", dont_inherit=True), names)


def test_the_page_names_every_method_and_every_preset_option() -> None:
    """A new method or option that is not documented fails here."""
    page = (DOCS / "methods.md").read_text()
    for method in METHODS.values():
        assert f"`{method.__name__}`" in page
    for name, datasets in {**PAPER, **SINCE}.items():
        for option in datasets["cifar10"]:
            assert re.search(rf"\| `{name}\.[^|]*\b{option}\b|\| `{name}\.\w+`[^|]*`{option}`", page), option
