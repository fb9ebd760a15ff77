"""What the paper claims, one sentence each, and which measure answers it: `claims.json`, read."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from sicl.bench.paper import measures
from sicl.bench.paper.evidence import MAIN, RESNET18
from sicl.bench.paper.measures import Measure
from sicl.data.files import embedded


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One sentence of the paper.

    Args:
        text: what it says, with its number.
        where: in which section, table or figure.
        measure: what our records say.
        runs: the names of those runs; none where the answer needs no records.
        source: the command, where it is not that of the runs.
    """

    text: str
    where: str
    measure: Measure
    runs: tuple[str, ...] = ()
    source: str = ""


def _claim(entry: dict[str, Any]) -> Claim:
    """Return an entry of the file as a claim; its measure is a function of `measures` and what that is given."""
    measure = partial(getattr(measures, entry.pop("measure")), **entry.pop("given", {}))
    runs = entry.pop("runs", ())
    named = {"main": MAIN, "resnet18": RESNET18}
    return Claim(**entry, measure=measure, runs=named[runs] if isinstance(runs, str) else tuple(runs))


_FILE = embedded("sicl.bench.paper", "claims.json")
CLAIMS: tuple[Claim, ...] = tuple(map(_claim, _FILE["claims"]))
"""Every claim of the text, the tables and the figures, in the order of the paper's importance."""
RUNS: dict[str, str] = _FILE["runs"]
"""The command behind every run that a claim is measured on."""
QUICK_RUNS: dict[str, str] = _FILE["quick"]
"""The same on the embedded model, on a CPU; figure 8b needs MNIST (`sicl data get mnist`)."""
SHORT_READINGS: dict[str, str] = _FILE["readings"]
"""How the readings of `readings-validation.json` are written, where their layer and kind do not say it."""
