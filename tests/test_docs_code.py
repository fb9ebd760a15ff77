"""Every code block of the README and the docs runs as it is printed; every command of theirs parses."""

from __future__ import annotations

import re
import shlex
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
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
SHELL = ("", "sh", "bash", "console")
UNRUN = {
    "docs/monitoring.md": "Prometheus' client has one registry a process",
    "docs/design.md": "a sketch of the engine's calls: what it runs on is made by the engine itself",
}
"""Pages with Python in a block that is not run, and why."""
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


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_block_of_a_page_escapes_these_tests(page: Path) -> None:
    """Fences begin their line, their language is one that is tried here, and Python says that it is Python."""
    text = page.read_text()
    assert len(re.findall(r"^\s*(```|~~~)", text, re.MULTILINE)) == 2 * len(BLOCK.findall(text))
    assert {match[1] for match in BLOCK.finditer(text)} <= {"python", "py", "toml", *SHELL}
    hidden = [
        block for block in _blocks(page, *SHELL) if re.search(r"^(import|from) \w|^\w+ = \w+\.", block, re.M)
    ]
    assert not hidden or str(page.relative_to(ROOT)) in UNRUN


def _lines(pattern: str) -> Iterator[Any]:
    for page in PAGES:
        for block in _blocks(page, *SHELL):
            for line in block.splitlines():
                text = line.strip().removeprefix("$ ").split(" #")[0].strip()
                if re.match(pattern, text) and "NAME" not in text:
                    yield pytest.param(text, id=f"{page.name}: {text}")


@pytest.mark.parametrize("line", list(_lines(r"(python|make) [\w/.-]+")))
def test_a_script_or_target_of_a_page_is_there(line: str) -> None:
    """`python FILE` names a file of the repository and options that it has, `make TARGET` a target."""
    command, name, *options = shlex.split(line)
    if command == "make":
        assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif name == "-m":
        assert find_spec(options[0]) is not None
    elif name != "-c":
        script = (ROOT / name).read_text()
        shared = "".join(path.read_text() for path in (ROOT / name).parent.glob("_*.py"))
        assert [o for o in options if o.startswith("--") and o.split("=")[0] not in script + shared] == []


@pytest.mark.parametrize("page", _with_blocks("toml"), ids=lambda p: p.name)
def test_a_plan_of_a_page_is_toml(page: Path) -> None:
    """What a reader would copy into a file is read."""
    tomllib = pytest.importorskip("tomllib" if sys.version_info >= (3, 11) else "tomli")
    assert all(tomllib.loads(block) for block in _blocks(page, "toml"))


@pytest.mark.parametrize("line", list(_lines(r"sicl [a-z]")))
def test_a_command_of_a_page_parses(line: str, files: None) -> None:
    """Commands, options and their values are known to the command line; nothing is run."""
    command: Any = typer.main.get_command(app)
    words = [word for word in shlex.split(line)[1:] if word != "..."]
    context = click.Context(command, info_name="sicl")
    while hasattr(command, "commands"):
        assert words[0] in command.commands, f"there is no command {words[0]!r}"
        command, words = command.commands[words[0]], words[1:]
    command.make_context(line, words, parent=context)
