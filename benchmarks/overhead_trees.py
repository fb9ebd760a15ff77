"""What each level of the engine buys, and whether a change made anything slower: two checkouts in alternation.

Every way is timed in two processes, one for each checkout, one call of this and one of that, round after round:
what else the machine does falls on both. With one thread its own CPU time is counted, as in `overhead.py`. A
figure is the mean over rounds, of which there are a multiple of four, since SICL does some work every fourth batch
only. "before" is the other checkout's time by this one's: above 1 it was slower.

    OMP_NUM_THREADS=1 python benchmarks/overhead_trees.py BEFORE --json FILE
    python benchmarks/overhead_trees.py --markdown FILE
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from overhead import CYCLE, engines_of, environment, matmul_peak, timed
from overhead_ways import Case

LEVELS = ("plain", "twin", "traced")
SICL = [
    name for way in ("sicl default", "sicl 20+20 frozen") for name in (way, *(f"{way}, {k}" for k in LEVELS))
]
NAMES = ["forward", "tent step", "naive", *SICL]
ARCH, WIDTH, BATCH = "resnet18", 16, 64


def serve() -> None:
    """Time the ways whose names are read, one a line; a first call of each sets up and is not timed."""
    device = torch.device("cpu")
    ways = Case(ARCH, WIDTH, BATCH, device).ways(SICL)
    for line in sys.stdin:
        way = ways[line.strip()]
        engines = engines_of(way)
        answer = {"ms": 1e3 * timed(way, device), "engine": engines[0].name if engines else ""}
        print(json.dumps(answer), flush=True)


class Tree:
    """A checkout, in a process of its own.

    Args:
        folder: its root.
    """

    def __init__(self, folder: Path) -> None:
        path = {"PYTHONPATH": str(folder.resolve() / "src")}
        command = [sys.executable, __file__, "--serve"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen(command, env={**os.environ, **path}, **pipes)

    def time(self, name: str) -> dict[str, Any]:
        """Return the milliseconds of a call, and the engine that ran."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{name}\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def compare(before: Path, seconds: float) -> dict[str, Any]:
    """Time every way in both trees for about so many seconds."""
    trees = {"before": Tree(before), "after": Tree(Path(__file__).parents[1])}
    times: dict[str, dict[str, list[float]]] = {name: {tree: [] for tree in trees} for name in NAMES}
    rows: dict[str, dict[str, Any]] = {name: {} for name in NAMES}
    # The first round, after which the clock starts, sets up.
    started, rounds = 0.0, -1
    while rounds < 1 or rounds % CYCLE or time.perf_counter() - started < seconds:
        for name in NAMES:
            # Forty passes are long, and all alike.
            if name == "naive" and rounds % CYCLE:
                continue
            # Either goes first in turn: what ran just before leaves its traces in the processor's cache and clock.
            for tree, runner in list(trees.items())[:: 1 if rounds % 2 else -1]:
                found = runner.time(name)
                rows[name]["engine"] = found["engine"]
                if rounds >= 0:
                    times[name][tree].append(found["ms"])
        rounds += 1
        started = started or time.perf_counter()
    for runner in trees.values():
        runner.close()
    for name, both in times.items():
        old, new = statistics.mean(both["before"]), statistics.mean(both["after"])
        rows[name] |= {"ms": new, "before_ms": old, "before": old / new, "n": len(both["after"])}
        rows[name]["times_ms"] = both
    device = torch.device("cpu")
    peak = matmul_peak(device, torch.float32)
    floor, operations = Case(ARCH, WIDTH, BATCH, device).floor(peak)
    case = {"arch": ARCH, "width": WIDTH, "batch": BATCH, "floor_ms": 1e3 * floor, "gflop": operations / 1e9}
    return {
        "environment": environment(device),
        "peak_tflops": peak / 1e12,
        "cases": [{**case, "rows": rows}],
    }


def table(result: dict[str, Any]) -> str:
    """Return the case as Markdown."""
    rows = result["cases"][0]["rows"]
    lines = ["| way | ms | TENT steps | naive passes / way | before | engine |", "|---|---|---|---|---|---|"]
    for name, row in rows.items():
        steps, faster = row["ms"] / rows["tent step"]["ms"], rows["naive"]["ms"] / row["ms"]
        cells = [f"{row['ms']:.0f}", f"{steps:.2f}", f"{faster:.1f}", f"{row['before']:.3f}", row["engine"]]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Compare and print, or print what was saved."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path, nargs="?", help="the root of the other checkout")
    parser.add_argument("--seconds", type=float, default=200.0, help="about how long to measure")
    parser.add_argument("--json", type=Path, help="write the result there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="print this result, do not measure")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
        return
    if options.markdown:
        print(table(json.loads(options.markdown.read_text())), end="")
        return
    if options.before is None:
        parser.error("give the root of the checkout to compare with")
    result = compare(options.before, options.seconds)
    if options.json:
        part = options.json.with_suffix(".part")
        part.write_text(json.dumps(result, indent=1) + "\n")
        part.replace(options.json)
    print(table(result))


if __name__ == "__main__":
    main()
