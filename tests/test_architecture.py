"""The shape of the house: imports flow one way, private names stay in their room, files and functions stay short."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import sicl

PACKAGE = Path(sicl.__file__).parent
FLOORS = [
    {"types", "errors", "spec", "selective"},
    {"engine.kernels", "corruptions", "metrics", "pictures", "states"},
    {"perturb"},
    {"engine"},
    {"models"},
    {"adapt", "data"},
    {"calibrate", "streams", "train"},
    {"monitor"},
    {"bench", "predict"},
    {"cli", "results"},
]
"""Rooms, and rooms within rooms, from the ground up: a room imports from its own floor or below."""
FLOOR = {room: level for level, rooms in enumerate(FLOORS) for room in rooms}
STRANGERS = [
    ("adapt", "calibrate"),
    ("adapt", "data"),
    ("bench.report", "bench.paper"),
    ("calibrate", "streams"),
]
"""Rooms that do not know each other, whichever floor they are on."""
MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}
every_module = pytest.mark.parametrize("name", MODULES)


@cache
def _imported(name: str) -> frozenset[str]:
    """What a module imports from the package, as "room.module.name"; also for type checking, also in functions."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(n.removeprefix("sicl.") for n in found if n.startswith("sicl."))


def _module(imported: str) -> str:
    return imported if imported in MODULES else imported.rpartition(".")[0]


def _room(name: str) -> str:
    """The innermost room that has a floor."""
    parts = name.split(".")
    rooms = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((room for room in rooms if room in FLOOR), parts[0])


def _is_in(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


@every_module
def test_a_room_imports_only_from_its_own_floor_or_below(name: str) -> None:
    """Also what is imported for type checking only."""
    if _room(name) in FLOOR:
        rooms = {_room(imported) for imported in _imported(name)} & set(FLOOR)
        assert not {room for room in rooms if FLOOR[room] > FLOOR[_room(name)]}


@pytest.mark.parametrize(("one", "other"), STRANGERS)
def test_strangers_do_not_import_each_other(one: str, other: str) -> None:
    """A calibrator watches an adapter, never the other way round; two kinds of pages share tables only."""
    for name in MODULES:
        for here, there in ((one, other), (other, one))[: 2 if one.startswith("bench") else 1]:
            if _is_in(name, here):
                assert not [imported for imported in _imported(name) if _is_in(imported, there)], name


@every_module
def test_what_is_private_stays_in_its_room(name: str) -> None:
    """Neither a module nor a name that begins with an underscore is imported by another room."""
    room = name.split(".")[0]
    others = [imported for imported in _imported(name) if imported.split(".")[0] != room]
    assert not [i for i in others if any(p.startswith("_") and p != "__version__" for p in i.split("."))]


def test_no_modules_import_each_other() -> None:
    """Not even around a corner: modules can be read one after the other."""
    seen: dict[str, str] = {}

    def visit(name: str, path: list[str]) -> None:
        if seen.get(name) == "done":
            return
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        for imported in sorted({_module(i) for i in _imported(name)} - {name}):
            if imported in MODULES:
                visit(imported, [*path, name])
        seen[name] = "done"

    for name in MODULES:
        visit(name, [])


def test_every_module_is_on_a_floor() -> None:
    """A new room has to find its place in the house."""
    assert {_room(name) for name in MODULES} - set(FLOOR) == {"__init__", "__main__"}


@every_module
def test_files_stay_readable(name: str) -> None:
    """A file is one noun, of at most 500 lines."""
    assert len(MODULES[name].read_text().splitlines()) <= 500


@every_module
def test_functions_stay_readable(name: str) -> None:
    """Code of at most 40 lines below the docstring."""
    long = {}
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.FunctionDef):
            first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
            length = (node.end_lineno or 0) - first.lineno + 1
            if length > 40:
                long[node.name] = length
    assert not long


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
