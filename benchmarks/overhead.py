"""What trustworthy confidence costs: SICL against a forward pass, a TENT step, and the naive hook loop.

All ways run side by side in one process, interleaved, on the state of a TENT-adapted network; a figure is the
median of 30 rounds (9 on a CPU), and in a round SICL calibrates four batches, since it looks at collapse and at
mixed images every fourth. "naive" is a hook and 40 whole forward passes; "floor" the operations of the 40
suffix passes at the measured peak of a matrix product in the dtype that SICL computes in.

    python benchmarks/overhead.py [--quick | --cases resnet18:64,resnet50:200] [--ways "sicl default"] [--json FILE]
    python benchmarks/overhead.py --markdown FILE.json        every case as a table
    python benchmarks/overhead.py --summary FILE.json         all cases as one table
    python benchmarks/overhead.py --figure FILE.json          the first case as SVG
    python benchmarks/overhead.py --samples 1,8,64            what a sample of a stream costs, by batch size
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from overhead_pages import figure, summary
from overhead_ways import OTHERS, SPECS, VARIANTS, Calibrate, Case

import sicl
from sicl.engine.engine import likes_bfloat16
from sicl.models.cifar import ARCHITECTURES

CYCLE = 4
"""Batches in which SICL does everything that it does now and then: it is timed over so many."""
FEWEST = 5
"""Rounds, however long they take: a median of one is what a first call cost."""


def timed(function: Callable[[], Any], device: torch.device, calls: int = 1) -> float:
    """Return the seconds of one call, the device's work included: the mean of several."""
    # One thread's own time does not count what other processes take: fair ratios on a busy machine.
    clock = time.thread_time if one_thread(device) else time.perf_counter
    spent = 0.0
    for _ in range(calls):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = clock()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        spent += clock() - started
    return spent / calls


def one_thread(device: torch.device) -> bool:
    """Say whether everything runs on the calling thread, so that its CPU time is the time."""
    return device.type == "cpu" and torch.get_num_threads() == 1


def measure(case: Case, names: list[str], seconds: float, deadline: float) -> dict[str, dict[str, Any]]:
    """Time every way, round after round, for about `seconds`; a way that fails carries its error."""
    rows: dict[str, dict[str, Any]] = {}
    ways = case.ways(names)
    for name, way in list(ways.items()):
        late = time.perf_counter() > deadline
        rows[name] = {"error": "skipped: no time left"} if late else _warm_up(way, case.device)
        if "error" in rows[name]:
            del ways[name]
    times: dict[str, list[float]] = {name: [] for name in ways}
    started = time.perf_counter()
    while ways:
        for name, way in ways.items():
            times[name].append(timed(way, case.device, CYCLE if engines_of(way) else 1))
        rounds = len(times["forward"])
        late = time.perf_counter() - started > seconds
        if rounds >= (30 if case.device.type == "cuda" else 9) or (late and rounds >= FEWEST):
            break
    for name, way in ways.items():
        # What goes as one graph has no parts to time.
        if engines_of(way) and not way.calibration.poll.captures.captured:
            rows[name] |= {"parts_ms": parts(way, case.device)}
    for name, values in times.items():
        rows[name] |= {"ms": 1e3 * statistics.median(values), "min_ms": 1e3 * min(values), "n": len(values)}
    return rows


def parts(way: Calibrate, device: torch.device) -> dict[str, float]:
    """Return what running up to the cut, and all variants, take of a calibration."""
    engines = engines_of(way)
    spent: dict[str, float] = {"begin": 0.0, "votes": 0.0}

    def watched(engine: Any, verb: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            box: list[Any] = []
            work = partial(getattr(type(engine), verb), engine, *args, **options)
            spent[verb] += timed(lambda: box.append(work()), device)
            return box[0]

        return call

    for engine in engines:
        engine.begin, engine.votes = watched(engine, "begin"), watched(engine, "votes")
    try:
        way()
    finally:
        for engine in engines:
            del engine.begin, engine.votes
    return {"begin": 1e3 * spent["begin"], "variants": 1e3 * spent["votes"]}


def engines_of(way: Any) -> list[Any]:
    """Return the engines of a calibration, each once (none for a baseline)."""
    witnesses = getattr(getattr(way, "calibration", None), "witnesses", [])
    asked = [q for w in witnesses for q in (*w.questions.values(), *(w.in_company or {}).values())]
    return list(dict.fromkeys(question.engine for question in asked))


def _warm_up(way: Callable[[], Any], device: torch.device) -> dict[str, Any]:
    """Call three times (trace, capture, replay); return the set-up time, peak memory and engine."""
    row: dict[str, Any] = {}
    started = time.perf_counter()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    try:
        for _ in range(3 if device.type == "cuda" else 1):
            timed(way, device)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}
    if device.type == "cuda":
        row["peak_mib"] = (torch.cuda.max_memory_allocated(device) - before) / 2**20
    row["set_up_s"] = time.perf_counter() - started
    engines = engines_of(way)
    if engines:
        row["engine"] = engines[0].name
        notes = [note for engine in engines for note in (engine.reason, *engine.notes)]
        row["notes"] = [note for note in dict.fromkeys(notes) if note]
        row["whole_poll_captured"] = bool(way.calibration.poll.captures.captured)
    return row


def matmul_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return the best rate of a matrix product seen, in operations a second."""
    n = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    timed(lambda: a @ b, device)
    # The best of many: on a shared machine most of them are disturbed.
    return 2 * n**3 / min(timed(lambda: a @ b, device) for _ in range(200))


def cases(device: torch.device, chosen: str | None) -> list[tuple[str, int, int]]:
    """(architecture, width, batch), what matters most first: full size on a GPU, narrow on a CPU."""
    if chosen:
        pairs = (item.partition(":") for item in chosen.split(","))
        order = [(name, int(batch or 64)) for name, _, batch in pairs]
    elif device.type == "cuda":
        order = [("resnet18", 64), ("resnet50", 200), ("vit_small", 64), ("resnet18", 200), ("resnet50", 64)]
        order += [("vit_small", 200), ("resnet18", 1), ("resnet50", 1), ("vit_small", 1)]
    else:
        order = [("resnet18", 64), ("resnet18", 1), ("vit_small", 64), ("vit_small", 1), ("resnet18", 200)]
    return [(name, 64 if device.type == "cuda" else 16, batch) for name, batch in order]


def environment(device: torch.device) -> dict[str, Any]:
    """Return the hardware and versions that figures belong to."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "device": gpu or f"{_cpu_name()}, {torch.get_num_threads()} threads",
        "bfloat16": likes_bfloat16(device),
        "clock": "CPU time of the one thread" if one_thread(device) else "wall time",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sicl": sicl.__version__,
        "variants": f"{VARIANTS} style + {VARIANTS} content",
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all cases."""
    device = torch.device(options.device)
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.benchmark = options.tune
    dtype = torch.bfloat16 if likes_bfloat16(device) else torch.float32
    peak = matmul_peak(device, dtype)
    result: dict[str, Any] = {"environment": environment(device), "peak_tflops": peak / 1e12, "cases": []}
    todo = cases(device, "resnet18:64" if options.quick else options.cases)
    started = time.perf_counter()
    for number, (arch, width, batch) in enumerate(todo):
        left = options.seconds - (time.perf_counter() - started)
        names = options.ways or [*SPECS, *(OTHERS if options.all else ())]
        record: dict[str, Any] = {"arch": arch, "width": width, "batch": batch}
        try:
            case = Case(arch, width, batch, device)
            floor, operations = case.floor(peak)
            record |= {"floor_ms": 1e3 * floor, "gflop": operations / 1e9}
            seconds = max(2.0, left / (len(todo) - number))
            deadline = started + 1.4 * options.seconds if number else float("inf")
            record["rows"] = measure(case, names, seconds, deadline)
        except Exception as error:
            record["error"] = f"{type(error).__name__}: {error}"[:300]
        result["cases"].append(record)
        print(table(record), file=sys.stderr, flush=True)
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return result


def samples(sizes: list[int], device: torch.device) -> str:
    """Return what a sample costs a fixed ResNet-18, by batch size, as Markdown: the second 128 of a stream."""
    model = ARCHITECTURES["resnet18"](width=64 if device.type == "cuda" else 16).to(device).eval()
    stream = torch.rand(256, 3, 32, 32, device=device)
    lines = ["| batch | forward, ms a sample | with SICL, ms a sample |", "|---|---|---|"]
    for size in sizes:
        trusted = sicl.SICL().attach(model)
        for batch in stream[:128].split(size):
            trusted(batch)
        spent = [0.0, 0.0]
        for batch in stream[128:].split(size):
            with torch.no_grad():
                spent[0] += timed(partial(model, batch), device)
            spent[1] += timed(partial(trusted, batch), device)
        lines.append(f"| {size} | {1e3 * spent[0] / 128:.2f} | {1e3 * spent[1] / 128:.2f} |")
    return "\n".join(lines)


def table(record: dict[str, Any]) -> str:
    """Return one case as a Markdown table."""
    title = f"**{record['arch']}, width {record['width']}, batch {record['batch']}**"
    if "rows" not in record:
        return f"{title}: failed ({record['error']})\n"
    rows = record["rows"]
    base = {name: rows.get(name, {}).get("ms") for name in ("naive", "tent step")}
    lines = [
        f"{title} (floor {record['floor_ms']:.2f} ms, {record['gflop']:.0f} GFLOP)",
        "",
        "| way | ms | x naive | of a TENT step | of the floor | peak MiB | engine |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, row in rows.items():
        if "error" in row:
            lines.append(f"| {name} | failed: {row['error'][:80]} | | | | | |")
            continue
        ms = row["ms"]
        faster = f"{base['naive'] / ms:.1f}" if base["naive"] else ""
        step = f"{ms / base['tent step']:.2f}" if base["tent step"] else ""
        share = f"{100 * record['floor_ms'] / ms:.0f} %" if name == "naive" or "20+20" in name else ""
        memory = f"{row['peak_mib']:.0f}" if "peak_mib" in row else ""
        split = row.get("parts_ms")
        detail = f" (cut {split['begin']:.2f}, variants {split['variants']:.2f})" if split else ""
        lines.append(
            f"| {name} | {ms:.2f}{detail} | {faster} | {step} | {share} | {memory} | {row.get('engine', '')} |"
        )
    return "\n".join(lines) + "\n"


def markdown(result: dict[str, Any]) -> str:
    """Return a whole result as Markdown."""
    facts = ", ".join(f"{key} {value}" for key, value in result["environment"].items())
    head = f"{facts}; matrix product peak {result['peak_tflops']:.2f} TFLOP/s.\n"
    return "\n".join([head, *(table(record) for record in result["cases"])])


def words(text: str) -> list[str]:
    """Return the ways that an option names, with commas between."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in {**SPECS, **OTHERS}:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join([*SPECS, *OTHERS])}.")
    return names


def main() -> None:
    """Measure and print, or print a result that was saved."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="ResNet-18 with batch 64 only")
    parser.add_argument("--cases", help="these only, as resnet18:64,resnet50:200")
    parser.add_argument(
        "--ways",
        type=words,
        help="SICL in these ways only, beside the others: 'sicl default,sicl 20+20 frozen'",
    )
    parser.add_argument(
        "--all", action="store_true", help="every level (plain, twin, traced, graph), and without lanes"
    )
    parser.add_argument("--tune", action="store_true", help="let cuDNN time its algorithms (cudnn.benchmark)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--seconds", type=float, default=150.0, help="about how long to measure")
    parser.add_argument("--json", type=Path, help="write the result there")
    pages = {"markdown": markdown, "summary": summary, "figure": figure}
    for name in pages:
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help="print this result, do not measure")
    parser.add_argument("--samples", metavar="SIZES", help="time a sample of a stream, by batch size: 1,8,64")
    options = parser.parse_args()
    if options.samples:
        print(samples([int(size) for size in options.samples.split(",")], torch.device(options.device)))
        return
    for name, page in pages.items():
        file = getattr(options, name)
        if file:
            print(page(json.loads(file.read_text())), end="")
            return
    result = run(options)
    if options.json:
        part = options.json.with_suffix(".part")
        part.write_text(json.dumps(result, indent=1) + "\n")
        part.replace(options.json)
    print(markdown(result))


if __name__ == "__main__":
    main()
