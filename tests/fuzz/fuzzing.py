"""What the fuzzers share: hostile values, damaged bytes, and the law that only the package's errors escape."""

from __future__ import annotations

import math
import random
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from sicl.errors import SiclError

T = TypeVar("T")


class Fuzzer:
    """Runs cases and keeps count; a case may give a value or a `SiclError` of one line, nothing else."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []

    def run(self, case: str, call: Callable[[], T]) -> T | None:
        """Return what the call gives, None where it was refused."""
        self.counts["cases"] += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                value = call()
        except SiclError as error:
            self.counts["refused"] += 1
            if "\n" in str(error) or not str(error).strip():
                self.fault(case, f"a message of several lines: {error}")
            return None
        except Exception:
            self.fault(case, traceback.format_exc().strip())
            return None
        self.counts["accepted"] += 1
        return value

    def fault(self, case: str, what: str) -> None:
        """Remember something that must not happen."""
        self.counts["faults"] += 1
        self.faults.append(f"{case[:300]}\n{what[-1500:]}")

    def finish(self, cases: int) -> None:
        """Fail on any fault, or if fewer cases ran than promised."""
        print(dict(self.counts))
        shown = "\n\n".join(self.faults[:5])
        assert not self.faults, f"{len(self.faults)} of {self.counts['cases']} cases:\n{shown}"
        assert self.counts["cases"] >= cases


def hostile(rng: random.Random) -> Any:
    """Return a value that few arguments want."""
    return rng.choice(_HOSTILE)(rng)


_HOSTILE: list[Callable[[random.Random], Any]] = [
    lambda r: None,
    lambda r: r.choice([True, False]),
    lambda r: r.choice(
        [0, 1, -1, 2, 5, 6, 15, -7, 2**31, 2**63, -(2**63) - 1, 2**64, 10**30, 10**400, 10**5000]
    ),
    lambda r: r.choice([0.0, -0.0, 0.5, 1.0, 2.5, -1.5, 1e-300, 1e30, 1e308, math.nan, math.inf, -math.inf]),
    lambda r: r.uniform(-2, 2),
    lambda r: r.choice(
        ["", "a", "nan", "1", "auto", "\0", "\ud800", "x" * 5000, "../../etc", "{}", "[red]", "é\n"]
    ),
    lambda r: r.choice([b"", b"\xff\xfe", bytearray(3)]),
    lambda r: r.choice(
        [[], [1], [None], ["a", 2], (), (1.0, 2.0, 3.0), ({},), {}, {"a": 1}, {1, 2}, range(3)]
    ),
    lambda r: r.choice(
        [np.float32(0.5), np.float64("nan"), np.int64(3), np.bool_(True), np.array([1.0, 2.0]), np.array(3)]
    ),
    lambda r: r.choice([torch.tensor(0.5), torch.tensor([1.0, 2.0]), torch.empty(0), torch.tensor(math.nan)]),
    lambda r: r.choice([object(), int, len, 1j, Exception("x"), Ellipsis, lambda: 1]),
]


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Return a file's bytes cut, flipped, zeroed, doubled or exchanged for noise."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 3, 20])):
        place = rng.randrange(max(1, len(data)))
        # Headers decide most: half of the damage is done to the first hundred bytes.
        place = place % 100 if rng.random() < 0.5 and data else place
        kind = rng.choice(["flip", "byte", "cut", "zero", "double", "insert"])
        if kind == "cut":
            del data[place:]
        elif kind == "zero":
            data[place : place + 16] = bytes(min(16, len(data) - place))
        elif kind == "double":
            data[place:place] = data[place : place + 32]
        elif kind == "insert":
            data[place:place] = rng.randbytes(rng.choice([1, 4, 64]))
        elif data:
            data[place % len(data)] = (
                rng.randrange(256) if kind == "byte" else data[place % len(data)] ^ (1 << rng.randrange(8))
            )
    return bytes(data)
