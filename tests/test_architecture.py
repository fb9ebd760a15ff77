"""The shape of the house: imports flow one way, private names stay in their room, files and functions stay short."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

import sicl

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
    ("bench.paper", "bench.report"),
    ("bench.tables", "bench.report"),
    ("bench.tables", "bench.paper"),
    ("calibrate", "streams"),
]
"""The first does not import the second, whichever floor they are on."""
MOST_LINES, MOST_FUNCTION_LINES = 500, 40


@dataclass(frozen=True)
class Module:
    """One file of a package."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def imported(self) -> frozenset[str]:
        """What it imports from the package, as "room.module.name"; also for type checking, also in functions."""
        found = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                found |= {f"{node.module}.{alias.name}" for alias in node.names}
        return frozenset(n.removeprefix("sicl.") for n in found if n.startswith("sicl."))

    @property
    def room(self) -> str:
        return _room(self.name)


def _read_package() -> dict[str, Module]:
    folder = Path(sicl.__file__).parent
    paths = {p: p.relative_to(folder).with_suffix("").parts for p in sorted(folder.rglob("*.py"))}
    names = {p: ".".join(parts).removesuffix(".__init__") for p, parts in paths.items()}
    return {name: Module(name, path.read_text()) for path, name in names.items()}


def _room(name: str) -> str:
    """The innermost room that has a floor."""
    parts = name.split(".")
    rooms = [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
    return next((room for room in rooms if room in FLOOR), parts[0])


def _is_in(name: str, room: str) -> bool:
    return name == room or name.startswith(f"{room}.")


def imports_from_above(house: dict[str, Module]) -> list[str]:
    """Modules that import from a higher floor."""
    return [
        f"{module.name} imports {name}"
        for module in house.values()
        for name in module.imported
        if module.room in FLOOR and FLOOR.get(_room(name), 0) > FLOOR[module.room]
    ]


def imports_of_strangers(house: dict[str, Module]) -> list[str]:
    """Modules that import from a room theirs does not know."""
    return [
        f"{module.name} imports {name}"
        for module in house.values()
        for here, there in STRANGERS
        for name in module.imported
        if _is_in(module.name, here) and _is_in(name, there)
    ]


def imports_of_private_names(house: dict[str, Module]) -> list[str]:
    """Modules that import, from another room, a module or name that begins with an underscore."""
    return [
        f"{module.name} imports {name}"
        for module in house.values()
        for name in module.imported
        if name.split(".")[0] != module.name.split(".")[0]
        and any(part.startswith("_") and part != "__version__" for part in name.split("."))
    ]


def import_cycles(house: dict[str, Module]) -> list[str]:
    """Chains of imports that come back to where they began."""
    found: list[str] = []
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            found.append(" -> ".join([*path[path.index(name) :], name]))
        elif name in house and name not in done:
            for imported in sorted(house[name].imported):
                module = imported if imported in house else imported.rpartition(".")[0]
                if module != name:
                    visit(module, [*path, name])
            done.add(name)

    for name in house:
        visit(name, [])
    return found


def homeless_modules(house: dict[str, Module]) -> list[str]:
    """Modules of no room that has a floor."""
    return [m.name for m in house.values() if m.room not in FLOOR and m.name not in ("__init__", "__main__")]


def long_files(house: dict[str, Module]) -> list[str]:
    """Files of more lines than one noun needs."""
    return [m.name for m in house.values() if len(m.text.splitlines()) > MOST_LINES]


def long_functions(house: dict[str, Module]) -> list[str]:
    """Functions with too much code below their docstring."""
    found = []
    for module in house.values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
                if (node.end_lineno or 0) - first.lineno + 1 > MOST_FUNCTION_LINES:
                    found.append(f"{module.name}.{node.name}")
    return found


def names_of_two_classes(house: dict[str, Module]) -> list[str]:
    """Names that two classes share, wherever they are."""
    nodes = (node for module in house.values() for node in ast.walk(module.tree))
    counts = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    return [name for name, count in counts.items() if count > 1]


def modules_without_a_docstring(house: dict[str, Module]) -> list[str]:
    """Files that do not say what they are."""
    return [m.name for m in house.values() if not ast.get_docstring(m.tree)]


LAWS: list[tuple[Callable[[dict[str, Module]], list[str]], dict[str, str]]] = [
    (imports_from_above, {"adapt.tent": "from sicl.bench.run.run import run_cell"}),
    (imports_from_above, {"engine.kernels.norm": "from sicl.engine.norms import batch_norms"}),
    (imports_from_above, {"data.load": "if TYPE_CHECKING:\n    from sicl.streams.stream import Stream"}),
    (imports_from_above, {"data.load": "def f():\n    from sicl.cli import main"}),
    (imports_of_strangers, {"bench.report.page": "from sicl.bench.paper.claims import CLAIMS"}),
    (imports_of_strangers, {"bench.paper.show": "import sicl.bench.report"}),
    (imports_of_strangers, {"adapt._base": "from sicl.calibrate import Calibrator"}),
    (imports_of_private_names, {"bench.run.run": "from sicl.adapt._base import Adapter"}),
    (imports_of_private_names, {"calibrate.softmax": "from sicl.engine.split import _kind"}),
    (import_cycles, {"a": "from sicl.b import x", "b": "from sicl.c import y", "c": "from sicl.a import z"}),
    (import_cycles, {"a": "if TYPE_CHECKING:\n    from sicl.b import x", "b": "def f():\n    import sicl.a"}),
    (homeless_modules, {"attic.box": ""}),
    (long_files, {"adapt.tent": "x = 1\n" * (MOST_LINES + 1)}),
    (long_functions, {"adapt.tent": "def f():\n" + "    x = 1\n" * (MOST_FUNCTION_LINES + 1)}),
    (long_functions, {"adapt.tent": "class A:\n  async def f():\n" + "    x = 1\n" * 41}),
    (names_of_two_classes, {"a": "class One: ...", "b": "def f():\n    class One: ..."}),
    (modules_without_a_docstring, {"a": "x = 1"}),
]
"""Each law with a small house that breaks it."""
HOUSE = _read_package()


@pytest.mark.parametrize("law", dict.fromkeys(law for law, _ in LAWS), ids=lambda law: law.__name__)
def test_the_house_keeps_its_laws(law: Callable[[dict[str, Module]], list[str]]) -> None:
    """One-way imports with sub-rooms, no cycles, private names at home, short files and functions, one name a class."""
    assert law(HOUSE) == []


@pytest.mark.parametrize(
    ("law", "broken"), LAWS, ids=[f"{law.__name__}-{i}" for i, (law, _) in enumerate(LAWS)]
)
def test_every_law_notices_a_house_that_breaks_it(
    law: Callable[[dict[str, Module]], list[str]], broken: dict[str, str]
) -> None:
    """A checker that can never fail would check nothing."""
    assert len(law({name: Module(name, text) for name, text in broken.items()})) == 1


def test_a_good_house_breaks_no_law() -> None:
    """Imports from below, private names of the own room, and 40 lines below a docstring are fine."""
    code = "def f():\n    'Doc.'\n" + "    x = 1\n" * MOST_FUNCTION_LINES
    texts = {
        "adapt._base": "'Doc.'",
        "adapt.tent": f"'Doc.'\nfrom sicl.adapt._base import _private\nfrom sicl.errors import nearest\n{code}",
        "bench.report.page": "'Doc.'\nfrom sicl.bench.tables.svg import tag",
    }
    house = {name: Module(name, text) for name, text in texts.items()}
    assert [problem for law, _ in LAWS for problem in law(house)] == []


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
