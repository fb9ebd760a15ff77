"""Write `docs/cli.md` from the commands themselves: `python -m sicl.cli.reference [--check] FILE`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import typer

from sicl.cli import app

HEADER = """# Command reference

Written by `python -m sicl.cli.reference docs/cli.md`; `make test` fails when it is out of date.
"""


def reference() -> str:
    """Return the Markdown of every command, its arguments and its options."""
    root = typer.main.get_command(app)
    return HEADER + "".join(_section(command, path) for path, command in _walk(root, "sicl"))


def _walk(command: Any, path: str) -> list[tuple[str, Any]]:
    found = [(path, command)]
    for name, child in sorted(getattr(command, "commands", {}).items()):
        found.extend(_walk(child, f"{path} {name}"))
    return found


def _section(command: Any, path: str) -> str:
    help_text = (command.help or "").replace("[bold]", "`").replace("[/bold]", "`").split("\f")[0].strip()
    rows = [row for row in map(_row, command.params) if row]
    table = ("\n| option | meaning | default |\n| --- | --- | --- |\n" + "".join(rows)) if rows else ""
    return f"\n## `{path}`\n\n{help_text}\n{table}"


def _row(parameter: Any) -> str:
    if getattr(parameter, "hidden", False):
        return ""
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{(parameter.name or '').upper()}`"
    default = "" if parameter.default is None or callable(parameter.default) else f"`{parameter.default}`"
    if parameter.required:
        default = "required"
    meaning = " ".join((getattr(parameter, "help", "") or "").split()).replace("|", "\\|")
    return f"| {names} | {meaning} | {default} |\n"


def main(arguments: list[str]) -> int:
    """Write the reference, or with --check say whether the file is up to date."""
    *flags, file = arguments or [""]
    if flags not in ([], ["--check"]) or not file.endswith(".md"):
        sys.stderr.write("Usage: python -m sicl.cli.reference [--check] FILE.md\n")
        return 2
    path = Path(file)
    if not flags:
        path.write_text(reference())
        return 0
    if path.exists() and path.read_text() == reference():
        return 0
    sys.stderr.write(f"{path} is out of date: run `python -m sicl.cli.reference {path}`.\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
