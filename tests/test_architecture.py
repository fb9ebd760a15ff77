"""The shape of the house: imports flow one way, files stay small, importing costs nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sicl

PACKAGE = Path(sicl.__file__).parent
FLOORS = [
    {"types", "errors", "spec", "selective"},
    {"engine", "models", "perturb", "pictures", "states", "corruptions", "metrics"},
    {"adapt", "calibrate", "data", "streams", "train"},
    {"monitor"},
    {"bench", "predict"},
    {"cli", "results"},
]
FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
FILES = sorted(PACKAGE.rglob("*.py"))


def _room(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [f"sicl.{a.name}" for a in node.names] if node.module == "sicl" else [node.module]
        rooms |= {n.split(".")[1] for n in names if n.startswith("sicl.")}
    return rooms & set(FLOOR)


@pytest.mark.parametrize(
    "path", [f for f in FILES if _room(f) in FLOOR], ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_a_room_imports_only_from_its_own_floor_or_below(path: Path) -> None:
    """types, errors <- engine, models, ... <- adapt, calibrate, data, streams <- monitor <- bench <- cli."""
    above = {room for room in _imported_rooms(path) if FLOOR[room] > FLOOR[_room(path)]}
    assert not above


def test_adapters_do_not_know_calibrators() -> None:
    """A calibrator watches an adapter; an adapter never imports a calibrator."""
    for path in (PACKAGE / "adapt").glob("*.py"):
        assert "calibrate" not in _imported_rooms(path), path.name


def test_every_module_is_on_a_floor() -> None:
    """A new room has to find its place in the house."""
    assert {_room(path) for path in FILES} - set(FLOOR) == {"__init__", "__main__"}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_stay_readable(path: Path) -> None:
    """No source file grows past 500 lines."""
    assert len(path.read_text().splitlines()) <= 500


def test_importing_the_package_does_not_import_torch() -> None:
    """`sicl --help` and plan checks must not wait for torch."""
    code = "import sys, sicl, sicl.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_public_names_resolve() -> None:
    """Every name in `__all__` is there, and an unknown one is an AttributeError."""
    for name in sicl.__all__:
        assert getattr(sicl, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = sicl.Nonsense
