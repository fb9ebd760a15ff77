"""Read registries and option fields from source text, so that a plan is checked without importing torch."""

from __future__ import annotations

import ast
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from inspect import formatannotation
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parents[2]


@dataclass(frozen=True)
class Unread:
    """A default that is an expression, not a literal: known by its text only."""

    text: str


@dataclass(frozen=True)
class Option:
    """One field of a spec, as its class declares it.

    Args:
        annotation: the type, as text.
        default: its value, `Unread` where that is an expression, MISSING where there is none.
    """

    annotation: str
    default: Any = MISSING


@dataclass(frozen=True)
class Kind:
    """A spec class: where it is, and what can be set.

    Args:
        path: "module:Class".
        options: its fields, the inherited ones first.
        needs_source: whether it declares `needs_source = True`.
    """

    path: str
    options: dict[str, Option]
    needs_source: bool = False


@cache
def registry(module: str, name: str) -> dict[str, str]:
    """Return the literal dict `name` of a `sicl` module as {key: "module:Class"}."""
    homes, value = _homes(_tree(module)), _assigned(module, name)
    if not isinstance(value, ast.Dict):
        raise LookupError(f"{module} has no literal dict {name}.")
    return {
        str(key.value): f"{homes[item.id]}:{item.id}"
        for key, item in zip(value.keys, value.values)
        if isinstance(key, ast.Constant) and isinstance(item, ast.Name)
    }


@cache
def literal(module: str, name: str) -> Any:
    """Return the literal value that a `sicl` module assigns to `name`."""
    return ast.literal_eval(_assigned(module, name))


def _assigned(module: str, name: str) -> ast.expr:
    for node in _tree(module).body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return node.value
    raise LookupError(f"{module} assigns nothing to {name}.")


@cache
def declared_kind(path: str) -> Kind:
    """Return a `sicl` spec class as its source declares it.

    Raises:
        LookupError: there is no such class.
    """
    module, _, name = path.partition(":")
    tree = _tree(module)
    node = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if node is None:
        # Packages hand on the names of their modules.
        home = _homes(tree).get(name, "")
        if not home.startswith("sicl.") or home == module:
            raise LookupError(f"{module} has no class {name}.")
        return replace(declared_kind(f"{home}:{name}"), path=path)
    homes = {**_homes(tree), **{n.name: module for n in tree.body if isinstance(n, ast.ClassDef)}}
    options: dict[str, Option] = {}
    needs_source = False
    for base in node.bases:
        if isinstance(base, ast.Name) and homes.get(base.id, "").startswith("sicl."):
            parent = declared_kind(f"{homes[base.id]}:{base.id}")
            options.update(parent.options)
            needs_source |= parent.needs_source
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or not isinstance(statement.target, ast.Name):
            continue
        annotation = ast.unparse(statement.annotation)
        if annotation.startswith("ClassVar"):
            if statement.target.id == "needs_source" and isinstance(statement.value, ast.Constant):
                needs_source = bool(statement.value.value)
            continue
        options[statement.target.id] = Option(annotation, _default(statement.value))
    return Kind(path, options, needs_source)


def function_source(path: str, name: str) -> str:
    """Return the code of a method of a `sicl` class, without comments and layout."""
    module, _, owner = path.partition(":")
    for node in ast.walk(_tree(module)):
        if isinstance(node, ast.ClassDef) and node.name == owner:
            found = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == name]
            return ast.unparse(found[0]) if found else ""
    raise LookupError(f"{module} has no class {owner}.")


def imported_kind(path: str, spec: type) -> Kind:
    """Return a class that is already imported, as its fields declare it."""
    options = {}
    for item in fields(spec) if is_dataclass(spec) else ():
        annotation = item.type if isinstance(item.type, str) else formatannotation(item.type)
        default = item.default
        if default is MISSING and item.default_factory is not MISSING:
            default = Unread(f"{item.default_factory}")
        options[item.name] = Option(annotation, default)
    return Kind(path, options, bool(getattr(spec, "needs_source", False)))


def accepts(annotation: str, value: object) -> bool:
    """Say whether a value from a plan fits a type; a type that is not understood accepts anything."""
    return _accepts(ast.parse(annotation, mode="eval").body, value)


def _accepts(node: ast.expr, value: object) -> bool:
    if isinstance(node, ast.BinOp):
        return _accepts(node.left, value) or _accepts(node.right, value)
    if isinstance(node, ast.Constant) and node.value is None:
        return value is None
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        if node.value.id == "Literal":
            choices = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            return any(isinstance(item, ast.Constant) and item.value == value for item in choices)
        return not isinstance(value, str | bool | int | float) if node.value.id in ("tuple", "list") else True
    if isinstance(node, ast.Name):
        plain = {"str": str, "bool": bool, "int": int, "float": (int, float)}.get(node.id)
        if plain is None:
            return True
        return isinstance(value, plain) and (node.id == "bool" or not isinstance(value, bool))  # type: ignore[arg-type]
    return True


@cache
def _tree(module: str) -> ast.Module:
    base = PACKAGE.joinpath(*module.split(".")[1:])
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    if not path.is_file():
        raise LookupError(f"there is no module {module}.")
    return ast.parse(path.read_text(encoding="utf-8"))


def _homes(tree: ast.Module) -> dict[str, str]:
    """Return where each name comes from that the module imports."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            found.update({alias.asname or alias.name: node.module for alias in node.names})
    return found


def _default(value: ast.expr | None) -> Any:
    if value is None:
        return MISSING
    try:
        return ast.literal_eval(value)
    except ValueError:
        return Unread(ast.unparse(value))
