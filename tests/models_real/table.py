"""Write docs/architectures.md: for every tried network where it is cut and which engine runs."""

from __future__ import annotations

import warnings
from pathlib import Path

from architectures import ARCHITECTURES, PAGE, examine, versions

HEAD = """# Architectures

Networks of other libraries that SICL was tried on: each attaches, keeps its predictions, resumes at its cut without
whole passes, and gives finite confidences at batch 8 and 1. *Cut* is where style is perturbed; *engine* is what
computes the variants of a batch of eight on a CPU, and *why not faster* what kept it from a faster level
([engine](engine.md)).

Made by `make architectures` and checked by `make test-models`, with random weights and
{versions}.

| network | cut | engine | why not faster |
|---|---|---|---|
"""


def main() -> None:
    """Examine all networks and write the page."""
    warnings.simplefilter("ignore")
    rows = []
    for architecture in ARCHITECTURES:
        rows.append(examine(architecture).row(architecture.name))
        print(rows[-1], flush=True)
    Path(PAGE).write_text(HEAD.format(versions=versions()) + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
