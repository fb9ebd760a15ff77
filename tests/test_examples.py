"""The examples and the README's claims about files: what a newcomer tries first must work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


# The servers do not end by themselves; tests/examples talks to them over HTTP.
SCRIPTS = sorted(path for path in (ROOT / "examples").glob("*.py") if not path.name.startswith("serve"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_an_example_runs_as_it_is(script: Path) -> None:
    """Each script ends well and prints something, offline."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda p: p.name
)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """Every relative link of the README and the docs points at a file of the repository."""
    targets = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []
