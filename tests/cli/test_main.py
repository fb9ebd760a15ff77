"""The command line as a user meets it: help, version, doctor, one-sentence errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import sicl
from sicl.cli import reference


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `sicl` in a process of its own."""
    command = [sys.executable, "-m", "sicl.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


@pytest.mark.parametrize("arguments", [("version",), ("--version",)])
def test_version_is_printed(arguments: tuple[str, ...]) -> None:
    """Both spellings print the package's version."""
    done = run(*arguments)
    assert (done.returncode, done.stdout.strip()) == (0, f"sicl {sicl.__version__}")


def test_doctor_reports_versions_devices_and_extras() -> None:
    """Doctor names torch, the GPU or its absence, every extra, and tries the embedded model."""
    done = run("doctor")
    assert done.returncode == 0, done.stderr
    for word in ("torch", "GPU", "ray", "timm", "torchvision", "transformers", "self-test"):
        assert word in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("demo", "--method", "tennt"), "tent"),
        (("demo", "--corruptions", "fogg"), "fog"),
        (("demo", "--calibrators", "sicll"), "sicl"),
        (("bench", "missing.toml"), "missing.toml"),
        (("report", "nowhere"), "nowhere"),
        (("data", "check", "nonsense"), "nonsense"),
        (("paper", "run", "table9"), "table9"),
        (("predict", "--model", "demo", "--images", "nowhere"), "nowhere"),
        (("watch", "nothing.jsonl"), "nothing.jsonl"),
        (("paper", "show", "table5", "no-such-folder"), "no-such-folder"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_exit_status_two(
    arguments: tuple[str, ...], words: str, tmp_path: Path
) -> None:
    """No traceback, nothing written, the wrong or the right name in the message."""
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_reference_names_every_command() -> None:
    """Each command has a section with its own help, and every option a meaning."""
    text = reference.reference()
    for command in (
        "demo",
        "predict",
        "watch",
        "doctor",
        "version",
        "bench",
        "report",
        "train",
        "data get",
        "data make",
        "paper run",
        "paper show",
    ):
        assert f"## `sicl {command}`" in text
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    undocumented = [row[0] for row in rows if not row[1].strip()]
    assert undocumented == []


def test_the_reference_check_notices_an_outdated_page(tmp_path: Path) -> None:
    """`--check` is what keeps docs/cli.md true."""
    page = tmp_path / "cli.md"
    assert reference.main([str(page)]) == 0
    assert reference.main(["--check", str(page)]) == 0
    page.write_text(page.read_text() + "old\n")
    assert reference.main(["--check", str(page)]) == 1
