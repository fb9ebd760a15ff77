"""`sicl data` parses, calls the library and prints what it did."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sicl.cli.data import app, parse_severities
from sicl.errors import OptionError, SiclError

Write = Callable[..., Path]
RUNNER = CliRunner()


def test_list_shows_every_data_set_and_where_it_is(write_cifar: Write) -> None:
    """The path of one that is there is in the table."""
    root = write_cifar("npz")
    result = RUNNER.invoke(app, ["list", "--data", str(root)], env={"COLUMNS": "300"})
    assert result.exit_code == 0
    assert str(root / "cifar10") in result.output
    for name in ("demo", "cifar100-c", "imagenet-c", "svhn", "folder:PATH"):
        assert name in result.output


def test_make_then_check_then_damage(write_cifar: Write) -> None:
    """What `make` wrote passes; a cut file fails with exit code 1 and its name."""
    root = write_cifar("npz")
    arguments = ["make", "--dataset", "cifar10", "--data", str(root), "--out", str(root)]
    result = RUNNER.invoke(app, [*arguments, "--severity", "5", "--corruption", "contrast"])
    assert result.exit_code == 0, result.output
    folder = root / "CIFAR-10-C"
    assert f"{folder} is complete." in result.output
    assert RUNNER.invoke(app, ["check", "cifar10-c", "--data", str(root)]).exit_code == 0
    (folder / "contrast.npy").write_bytes((folder / "contrast.npy").read_bytes()[:-9])
    result = RUNNER.invoke(app, ["check", "cifar10-c", "--data", str(root)])
    assert result.exit_code == 1
    assert "WRONG  cifar10-c contrast.npy" in result.output


def test_check_of_an_absent_data_set_says_how_to_get_it(tmp_path: Path) -> None:
    """Named but not there is an error; checking everything there is passes."""
    result = RUNNER.invoke(app, ["check", "mnist", "--data", str(tmp_path)])
    assert isinstance(result.exception, SiclError)
    assert "sicl data get mnist" in str(result.exception)
    assert RUNNER.invoke(app, ["check", "--data", str(tmp_path)]).exit_code == 0


def test_get_of_an_unknown_name_is_one_sentence(tmp_path: Path) -> None:
    """The error reaches the caller as a `SiclError`."""
    result = RUNNER.invoke(app, ["get", "cifar", "--data", str(tmp_path)])
    assert isinstance(result.exception, OptionError)


@pytest.mark.parametrize(
    ("text", "severities"), [("1-5", (1, 2, 3, 4, 5)), ("5", (5,)), ("5,1-2", (1, 2, 5))]
)
def test_severities_are_ranges_and_lists(text: str, severities: tuple[int, ...]) -> None:
    """Both forms, mixed, in order."""
    assert parse_severities(text) == severities


def test_a_severity_that_is_no_number_is_refused() -> None:
    """The message shows the forms."""
    with pytest.raises(OptionError, match="must look like 1-5, 5 or 1,3,5; got 'five'"):
        parse_severities("five")


def test_help_does_not_wait_for_torch() -> None:
    """Importing the command line loads neither torch nor numpy."""
    code = "import sys, sicl.cli.data; sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
