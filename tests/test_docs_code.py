"""Every code block of the README and the docs runs as it is printed; every command of theirs parses."""

from __future__ import annotations

import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
import torch
import typer.main

from sicl.bench.run.results import load_records
from sicl.cli import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
EXTRAS = {"reproduce-a-table.md": "pandas"}
"""Pages whose code needs a package beyond the core."""
PLAN = """
datasets = ["demo"]
models = ["demo"]
methods = ["source"]
calibrators = ["softmax"]
streams = [{ name = "benign", corruptions = ["fog"], n = 64 }]
"""


def _blocks(page: Path, *languages: str) -> list[str]:
    return [match[2] for match in BLOCK.finditer(page.read_text()) if match[1] in languages]


def _with_blocks(*languages: str) -> list[Path]:
    return [page for page in PAGES if _blocks(page, *languages)]


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that pages take for granted: a plan, and the records of a run."""
    monkeypatch.chdir(tmp_path)
    Path("plan.toml").write_text(PLAN)
    records = load_records(ROOT / "results" / "demo-source.jsonl.xz")
    for folder in (Path("runs/mine"), Path("sicl-runs/mine")):
        folder.mkdir(parents=True)
        for record in records:
            (folder / f"{record.cell_id}.json").write_text(record.to_json())


@pytest.mark.parametrize("page", _with_blocks("python", "py"), ids=lambda p: str(p.relative_to(ROOT)))
def test_the_code_of_a_page_runs_as_printed(page: Path, files: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Block after block in one module, as a reader would type them."""
    if page.name in EXTRAS:
        pytest.importorskip(EXTRAS[page.name])
    torch.manual_seed(0)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for number, block in enumerate(_blocks(page, "python", "py"), start=1):
        code = compile(block, f"{page.name} block {number}", "exec")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            exec(code, module.__dict__)


def _commands() -> Iterator[Any]:
    for page in PAGES:
        for block in _blocks(page, "", "sh", "bash", "console"):
            for line in block.splitlines():
                text = line.strip().removeprefix("$ ").split(" #")[0].strip()
                if re.match(r"sicl [a-z]", text) and "NAME" not in text:
                    yield pytest.param(text, id=f"{page.name}: {text}")


@pytest.mark.parametrize("line", list(_commands()))
def test_a_command_of_a_page_parses(line: str, files: None) -> None:
    """Commands, options and their values are known to the command line; nothing is run."""
    command: Any = typer.main.get_command(app)
    words = [word for word in shlex.split(line)[1:] if word != "..."]
    context = click.Context(command, info_name="sicl")
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"there is no command {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
    command.make_context(line, words, parent=context)
