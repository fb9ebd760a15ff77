"""Random command lines: each ends with a documented exit status, and none with a traceback."""

from __future__ import annotations

import random
import socket
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from sicl.bench.executors.local import Inline, Processes
from sicl.bench.executors.ray import RayCluster
from sicl.bench.run import run
from sicl.cli import app, main
from sicl.errors import SiclError

pytestmark = pytest.mark.slow

ODD = [
    "", " ", "-", "--", "-1", "0", "1", "1e400", "nan", "inf", "2147483648", "99999999999999999999", "a,b",
    ",", "[/x]", "[bold]", "..", "../..", "/dev/null", "/proc/self/mem", "\0", "x" * 5000, "é", "\udcff",
    "plan.toml", "bad.toml", "run", "runs", "a.jsonl.xz", "empty.jsonl.xz", "demo", "cifar10", "cpu",
    "cuda", "cuda:99", "meta", "auto", "ray", "inline", "table1", "tent", "sicl", "fog", "1-5", "5-1",
    "folder:.", "localhost:1", "--help", "--version", "lr=1", "=", "lr", "%s", "$HOME", "~",
]  # fmt: skip
PLAN = 'datasets = ["demo"]\nmodels = ["demo"]\nstreams = [{name = "benign", corruptions = ["fog"], n = 4}]\n'


@cache
def commands() -> list[tuple[list[str], list[str], int]]:
    """Return every command: its words, its options, and how many arguments it takes."""
    found = []

    def walk(command: Any, words: list[str]) -> None:
        children = getattr(command, "commands", {})
        for name, child in children.items():
            walk(child, [*words, name])
        if not children:
            options = [o for p in command.params for o in p.opts if p.param_type_name == "option"]
            found.append((words, options, sum(p.param_type_name == "argument" for p in command.params)))

    walk(typer.main.get_command(app), [])
    return [item for item in found if item[0] != ["doctor"]]


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a few files to stumble over; nothing is computed, downloaded or trained."""
    from sicl.bench.plan.plan import load_plan
    from sicl.bench.run.runner import run_plan

    def refused(*_: object, **__: object) -> None:
        raise SiclError("not here.")

    def cell(cell: Any, *_: object, **__: object) -> run.Outcome:
        from sicl.bench.run.record import Recorder

        return run.Outcome(Recorder(**cell.identity).failed("no", spec=dict(cell.spec)))

    def inline(self: object, *given: Any) -> None:
        Inline().run(*given)

    def offline(*_: object, **__: object) -> None:
        raise OSError(111, "Connection refused")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sicl.bench.run.run.run_cell", cell)
    monkeypatch.setattr("sicl.train.train_to_file", refused)
    monkeypatch.setattr("sicl.data.make.make_corrupted", refused)
    monkeypatch.setattr(Processes, "run", inline)
    monkeypatch.setattr(RayCluster, "run", inline)
    monkeypatch.setattr(socket.socket, "connect", offline)
    monkeypatch.setattr("sicl.cli._listen", lambda: None)
    monkeypatch.setenv("SICL_DATA", str(tmp_path / "data"))
    (tmp_path / "plan.toml").write_text(PLAN)
    (tmp_path / "bad.toml").write_text("datasets = [\0")
    (tmp_path / "a.jsonl.xz").write_bytes(b"no archive")
    (tmp_path / "empty.jsonl.xz").write_bytes(b"")
    run_plan(load_plan(tmp_path / "plan.toml"), tmp_path / "run")
    return tmp_path


def line(draw: random.Random) -> list[str]:
    """Return a command with arguments and options, right and wrong."""
    words, options, count = draw.choice(commands())
    given = [draw.choice(ODD) for _ in range(max(0, count + draw.choice([0, 0, 0, -1, 1])))]
    if "bench" in words and draw.random() < 0.7:
        given = ["plan.toml"]
    elif words[0] == "paper" and draw.random() < 0.7:
        given[:1] = [draw.choice(["table1", "figure2", "severity"])]
        given += ["--quick"] * (words[-1] == "run")
    elif words[0] in ("report", "results") and draw.random() < 0.5:
        given[:1] = ["run"]
    for _ in range(draw.randint(0, 4)):
        option = draw.choice([*options, "--nope", "--out"]) if options else "--nope"
        given += [option] if draw.random() < 0.2 else [option, draw.choice(ODD)]
    if draw.random() < 0.1:
        draw.shuffle(given)
    return [*words, *given]


@pytest.mark.parametrize("seed", range(15))
def test_a_random_command_line_is_never_a_traceback(
    seed: int, quick: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three thousand in all; `main` may only leave through `sys.exit`, with a status that is documented."""
    draw = random.Random(seed)
    ended: dict[Any, int] = {}
    for _ in range(200):
        arguments = line(draw)
        monkeypatch.setattr(sys, "argv", ["sicl", *arguments])
        try:
            main()
            status: Any = 0
        except SystemExit as error:
            status = error.code or 0
        except BaseException as error:
            raise AssertionError(f"{arguments}: {type(error).__name__}: {error}") from error
        said = capsys.readouterr()
        assert status in (0, 1, 2, 3), arguments
        assert status in (0, 1) or said.err, arguments
        assert "Traceback" not in said.err, arguments
        ended[status] = ended.get(status, 0) + 1
    assert ended.get(0)
    assert ended.get(2)
