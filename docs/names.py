"""Check that the built site's reference has every public name: `python docs/names.py SITE`, run by `make site`."""

from __future__ import annotations

import importlib
import sys
import zlib
from pathlib import Path

ROOMS = (
    *(
        "sicl",
        "sicl.adapt",
        "sicl.calibrate",
        "sicl.corruptions",
        "sicl.data",
        "sicl.metrics",
        "sicl.monitor",
    ),
    *("sicl.perturb", "sicl.streams"),
)


def documented(site: Path) -> set[str]:
    """Return the names in the site's inventory, which mkdocstrings writes: four lines of header, then zlib."""
    body = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    return {line.split(" ", 1)[0] for line in zlib.decompress(body).decode().splitlines()}


def homes(room: str) -> dict[str, str]:
    """Return the public names of a room, and where each is defined."""
    module = importlib.import_module(room)
    found = {}
    own = [n for n, value in vars(module).items() if getattr(value, "__module__", "") == room and n[0] != "_"]
    for name in getattr(module, "__all__", own):
        value = getattr(module, name)
        if name != "__version__":
            found[f"{room}.{name}"] = (
                f"{getattr(value, '__module__', room)}.{getattr(value, '__qualname__', name)}"
            )
    return found


def main(site: str) -> int:
    """Print what is missing; return 1 if something is."""
    known = documented(Path(site))
    names = {public: home for room in ROOMS for public, home in homes(room).items()}
    missing = [public for public, home in names.items() if not {public, home} & known]
    if missing:
        print(
            f"{len(missing)} of {len(names)} public names are in no page of docs/reference: {', '.join(missing)}"
        )
    return bool(missing)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
