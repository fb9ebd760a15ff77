"""A snapshot of the public API: a change of a name, an option or a default is a decision, not an accident."""

from __future__ import annotations

import importlib
import inspect
import sys
from pathlib import Path

SNAPSHOT = Path(__file__).with_name("public_api.txt")
MODULES = (
    "sicl",
    "sicl.metrics",
    "sicl.corruptions",
    "sicl.streams",
    "sicl.data",
    "sicl.monitor",
    "sicl.results",
)


def _lines() -> list[str]:
    lines = []
    for name in MODULES:
        module = importlib.import_module(name)
        for public in sorted(getattr(module, "__all__", ["frame", "rows"])):
            lines += _about(f"{name}.{public}", getattr(module, public))
    return lines


def _about(name: str, value: object) -> list[str]:
    if inspect.isclass(value):
        own = {key for kind in value.__mro__ if kind.__module__.startswith("sicl") for key in vars(kind)}
        methods = [
            m for m in sorted(own) if not m.startswith("_") and inspect.isroutine(getattr(value, m, None))
        ]
        # A protocol has no constructor of its own.
        plain = getattr(value, "_is_protocol", False) or issubclass(value, BaseException)
        return [f"{name}{'' if plain else _parameters(value)}", *(f"{name}.{method}" for method in methods)]
    if inspect.isroutine(value):
        return [f"{name}{_parameters(value)}"]
    return [name]


def _parameters(value: object) -> str:
    parts = []
    for parameter in inspect.signature(value).parameters.values():  # type: ignore[arg-type]
        default = parameter.default
        shown = isinstance(default, bool | int | float | str | tuple | None)
        has = default is not inspect.Parameter.empty
        parts.append(parameter.name + (f"={default!r}" if has and shown else "=..." if has else ""))
    return f"({', '.join(parts)})"


def test_the_public_api_is_the_one_in_the_snapshot() -> None:
    """Rewrite it with `python tests/test_public_api.py`, and say in the changelog what changed."""
    assert "\n".join(_lines()) + "\n" == SNAPSHOT.read_text()


if __name__ == "__main__":
    sys.exit(SNAPSHOT.write_text("\n".join(_lines()) + "\n") == 0)
