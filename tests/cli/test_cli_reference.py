"""The command reference writes itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from sicl.cli.reference import main


def test_the_reference_is_written_and_checked(tmp_path: Path) -> None:
    """What was written is up to date; what was changed since is not."""
    page = tmp_path / "cli.md"
    assert main([str(page)]) == 0
    assert main(["--check", str(page)]) == 0
    page.write_text(page.read_text() + "more\n")
    assert main(["--check", str(page)]) == 1


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--chek", "cli.md"], ["--check", "notes.txt"]])
def test_anything_else_writes_nothing(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not even a file called --help."""
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("Usage: ")
    assert not list(tmp_path.iterdir())
