"""What a step of each adaptation method costs, against a hand-written TENT loop in the same run.

Claims: a `Tent` step costs at most 1.15 x the minimal loop; `Rotta` and `Sotta` at most 4 x `Tent`.

    python benchmarks/adapters.py [--model demo] [--device cpu] [--rounds 15] [--threads 1] [--methods tent cotta]
    python benchmarks/adapters.py --views [--model demo] [--device cpu]     # CoTTA's 32 views, some or all at once

The contenders take turns batch by batch, so a busy machine slows all alike; ratios are medians over rounds. With one
thread on a CPU the time is the processor's, in which other people's work does not count.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import sicl
from sicl.adapt import METHODS
from sicl.adapt._views import mean_over_views
from sicl.models.cifar import ARCHITECTURES
from sicl.types import SourceData

LIMITS = {"tent / minimal loop": 1.15, "rotta / tent": 4.0, "sotta / tent": 4.0}


_ALL_SAMPLES: dict[str, dict[str, Any]] = {
    "eata": {"margin": 2.0, "similarity": 1.0},
    "sar": {"margin": 2.0},
    "sotta": {"threshold": 0.0},
    "deyo": {"margin": 2.0, "threshold": -1.0},
    "cotta": {"threshold": 1.0},
}


def minimal_tent(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return TENT in as few lines as it takes: no checks, no state, no observers."""
    model = copy.deepcopy(model).eval().requires_grad_(False)
    parameters: list[nn.Parameter] = []
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.train()
            module.track_running_stats = False
            parameters += [module.weight.requires_grad_(True), module.bias.requires_grad_(True)]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)

    def step(images: Tensor) -> Tensor:
        logits = model(images)
        loss = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return logits.detach()

    return step


def contenders(model: nn.Module, images: Tensor, names: list[str]) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return the minimal loop and the methods, attached, in their dearest case: no sample is filtered out."""
    source = SourceData(images, torch.zeros(len(images), dtype=torch.int64))
    steps: dict[str, Callable[[Tensor], Tensor]] = {"minimal loop": minimal_tent(model)}
    for name in dict.fromkeys(["tent", *names]):
        method = METHODS[name]
        steps[name] = method.for_dataset("demo", **_ALL_SAMPLES.get(name, {})).attach(model, source=source)
    return steps


def time_in_turns(
    steps: dict[str, Callable[[Tensor], Tensor]], batches: list[Tensor], rounds: int
) -> dict[str, list[float]]:
    """Return seconds a batch for each contender and round; the order rotates."""
    for step in steps.values():
        for images in batches[:2]:
            step(images)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            images = batches[i % len(batches)]
            start = _now(images)
            steps[name](images)
            seconds[name].append(_now(images) - start)
    return seconds


def _now(images: Tensor) -> float:
    if images.is_cuda:
        torch.cuda.synchronize(images.device)
    return time.process_time() if clock(images.device.type) == "processor" else time.perf_counter()


def clock(device: str) -> str:
    """Return which time is taken: the processor's, or the wall's."""
    return "processor" if device == "cpu" and torch.get_num_threads() == 1 else "wall"


def views_at_once(model: nn.Module, images: Tensor, rounds: int) -> dict[str, dict[str, float]]:
    """Return milliseconds, and MiB beyond what was there, of CoTTA's 32 views when 1, 4, 8 or all go at once."""
    network = copy.deepcopy(model).requires_grad_(False)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.train()
            layer.track_running_stats = False

    def passes(n: int) -> Callable[[Tensor], Tensor]:
        return lambda batch: mean_over_views(network, batch, 32, torch.Generator().manual_seed(0), n)

    steps = {str(n): passes(n) for n in (1, 4, 8, 32)}
    seconds = time_in_turns(steps, [images] * 2, rounds)
    return {
        name: {
            "milliseconds": round(1e3 * statistics.median(seconds[name]), 1),
            "over_one": round(ratio(seconds, name, "1"), 3),
            "peak_mib": round(peak_mib(step, images), 1),
        }
        for name, step in steps.items()
    }


def peak_mib(step: Callable[[Tensor], Tensor], images: Tensor) -> float:
    """Return the memory that a step takes at most beyond what is there before it; NaN where nobody knows."""
    if images.is_cuda:
        torch.cuda.reset_peak_memory_stats(images.device)
        before = torch.cuda.memory_allocated(images.device)
        step(images)
        return float(torch.cuda.max_memory_allocated(images.device) - before) / 2**20
    clear = Path("/proc/self/clear_refs")
    if not clear.exists():
        return float("nan")
    clear.write_text("5")  # the kernel's peak starts anew from what is resident now
    before = _status("VmRSS")
    step(images)
    return (_status("VmHWM") - before) / 2**10


def _status(name: str) -> float:
    return next(float(line.split()[1]) for line in _lines("/proc/self/status") if line.startswith(name))


def ratio(seconds: dict[str, list[float]], above: str, below: str) -> float:
    """Return the median over rounds of one contender's time over another's."""
    return statistics.median(a / b for a, b in zip(seconds[above], seconds[below]))


def load(name: str, device: str) -> nn.Module:
    """Return a trained model, or an untrained one of a known architecture: time does not depend on weights."""
    if name in ARCHITECTURES:
        return ARCHITECTURES[name]().eval().to(device)
    return sicl.load_model(name, device=device)


def hardware(device: str) -> str:
    """Name the processor (and the accelerator) the numbers are from."""
    names = [line for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    cpu = names[0].partition(":")[2].strip() if names else platform.processor() or platform.machine()
    gpu = f", {torch.cuda.get_device_name(device)}" if device.startswith("cuda") else ""
    return f"{cpu}, {os.cpu_count()} cores, {torch.get_num_threads()} threads{gpu}"


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default="demo", help="for `sicl.load_model`, or an architecture such as resnet18"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="METHOD")
    parser.add_argument("--views", action="store_true", help="only CoTTA's 32 views: 1, 4, 8 or all at once")
    parser.add_argument(
        "--out", type=Path, help="default: results/adapters-cpu.json or adapters-gpu.json here"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and save; the exit status says whether the claims hold."""
    options = _options(arguments)
    where = "gpu" if options.device.startswith("cuda") else "cpu"
    out: Path = options.out or Path(__file__).parent / "results" / f"adapters-{where}.json"
    torch.set_num_threads(options.threads)
    model = load(options.model, options.device)
    generator = torch.Generator().manual_seed(0)
    shape = (options.batch, 3, 32, 32)
    batches = [torch.rand(shape, generator=generator).to(options.device) for _ in range(8)]
    if options.views:
        print(
            f"{hardware(options.device)}; model {options.model}, batch {options.batch}, n = {options.rounds}"
        )
        for name, row in views_at_once(model, batches[0], options.rounds).items():
            print(f"{name:>3} of 32 views at once: " + ", ".join(f"{key} {row[key]}" for key in row))
        return 0
    seconds = time_in_turns(contenders(model, batches[0], options.methods), batches, options.rounds)
    limits = {name: limit for name, limit in LIMITS.items() if set(name.split(" / ")) <= seconds.keys()}
    ratios = {name: ratio(seconds, *name.split(" / ")) for name in limits}
    record = {
        "claim": "seconds a batch of each adaptation method, and ratios (medians over rounds)",
        "command": " ".join(["python benchmarks/adapters.py", *(arguments or sys.argv[1:])]).strip(),
        "hardware": hardware(options.device),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "sicl": sicl.__version__,
        },
        "model": options.model,
        "batch": options.batch,
        "n_rounds": options.rounds,
        "clock": clock(options.device),
        "milliseconds": {name: round(1e3 * statistics.median(s), 2) for name, s in seconds.items()},
        "over_tent": {name: round(ratio(seconds, name, "tent"), 3) for name in seconds},
        "ratios": {name: round(value, 3) for name, value in ratios.items()},
        "limits": limits,
    }
    report(record)
    part = out.with_suffix(".part")
    part.write_text(json.dumps(record, indent=2) + "\n")
    part.replace(out)
    return int(any(ratios[name] > limit for name, limit in limits.items()))


def report(record: dict[str, Any]) -> None:
    """Print the record as a table."""
    print(f"{record['hardware']}; {record['versions']}")
    print(
        f"model {record['model']}, batch {record['batch']}, n = {record['n_rounds']} rounds, {record['clock']} time\n"
    )
    print(f"{'method':<14}{'ms a batch':>12}{'x TENT':>9}")
    for name, milliseconds in record["milliseconds"].items():
        print(f"{name:<14}{milliseconds:>12.2f}{record['over_tent'][name]:>9.2f}")
    print()
    for name, limit in record["limits"].items():
        verdict = "holds" if record["ratios"][name] <= limit else "FAILS"
        print(f"{name:<20} {record['ratios'][name]:.3f} (limit {limit}) {verdict}")


if __name__ == "__main__":
    sys.exit(main())
