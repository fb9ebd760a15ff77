"""One cell of a benchmark: a complete, hashable description of one adaptation run."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Cell:
    """What one run does: data set, model, method, stream and seed, with all calibrators.

    Args:
        spec: JSON-able; the keys `dataset`, `model`, `method`, `stream` (each a dict with `name` and `label`),
            `calibrators` (by label) and `seed`.
    """

    spec: Mapping[str, Any]

    @cached_property
    def id(self) -> str:
        """A readable name and a hash of the complete spec; equal exactly when the spec is."""
        canonical = json.dumps(self.spec, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(canonical.encode()).hexdigest()[:12]
        return f"{self.slug}-{digest}"

    @property
    def slug(self) -> str:
        """The readable part of the id."""
        identity = self.identity
        words = [identity[key] for key in ("dataset", "model", "method", "stream", "corruption", "severity")]
        parts = [str(word) for word in (*words, f"seed{identity['seed']}") if word is not None]
        return re.sub(r"[^A-Za-z0-9.]+", "-", "_".join(parts).replace("_", "."))[:120]

    @property
    def identity(self) -> dict[str, Any]:
        """The fields that name the cell in a record."""
        options = self.spec["stream"]["options"]
        corruption = options.get("corruption")
        return {
            **{noun: self.spec[noun]["label"] for noun in ("dataset", "model", "method", "stream")},
            "seed": self.spec["seed"],
            "corruption": corruption,
            "severity": None if corruption == "clean" else options.get("severity"),
        }

    @property
    def label(self) -> str:
        """A short name for people."""
        identity = self.identity
        what = [identity["stream"], identity["corruption"], identity["severity"]]
        stream = " ".join(str(word) for word in what if word is not None)
        named = " / ".join(str(identity[noun]) for noun in ("dataset", "model", "method"))
        return f"{named} / {stream} / seed {identity['seed']}"
