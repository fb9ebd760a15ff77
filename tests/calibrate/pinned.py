"""Confidences and signals of many configurations, kept as a file: what a change of the house must not change.

python tests/calibrate/pinned.py        write pins.npz anew
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from calibrate_networks import images, small_net, small_vit
from torch import Tensor, nn

import sicl
from sicl.adapt import Method
from sicl.corruptions import corrupt
from sicl.data import load_dataset

FILE = Path(__file__).with_name("pins.npz")
FEW = {"variants": 4, "content_variants": 4, "precision": "float32"}
SOURCE, TENT, ROTTA = sicl.Source(), sicl.Tent(lr=0.02), sicl.Rotta(capacity=16, update_every=16)


@dataclass(frozen=True)
class Case:
    """A calibrator on a method on a network, over a short stream.

    Args:
        spec: the calibrator.
        method: whose predictions it watches.
        network: makes the network.
        stream: its batches.
        disturb: what happens to the network after the first batch.
    """

    spec: sicl.SICL
    method: Method = SOURCE
    network: Callable[[], nn.Module] = small_net
    stream: Callable[[], list[Tensor]] = lambda: [images(20, seed=seed) for seed in range(3)]
    disturb: Callable[[nn.Module], None] = lambda _network: None


def colours() -> nn.Module:
    """A classifier that names the colour channel which stands out, from batch-normalised channel means."""
    head, convolution = nn.Linear(3, 3, bias=False), nn.Conv2d(3, 3, 1, bias=False)
    with torch.no_grad():
        head.weight.copy_(2 * torch.eye(3))
        convolution.weight.copy_(torch.eye(3).view(3, 3, 1, 1))
    layers = [convolution, nn.BatchNorm2d(3), nn.Identity(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head]
    return nn.Sequential(*layers)


def _colour_images() -> list[Tensor]:
    batches = []
    for seed in range(7):
        batch = torch.rand(21, 3, 8, 8, generator=torch.Generator().manual_seed(seed)) * 0.5
        batch[torch.arange(21), torch.arange(21) % 3] += 0.4
        batches.append(batch)
    return batches


def _sorted_images() -> list[Tensor]:
    """The same images, one class after the other."""
    images = torch.cat(_colour_images())
    return list(torch.cat([images[i::3] for i in range(3)]).split(21))


@torch.no_grad()
def _collapse(network: nn.Module) -> None:
    norm = network.get_submodule("1")
    norm.weight.zero_()
    norm.bias.copy_(torch.tensor([5.0, 0.0, 0.0]))


def _small_batches() -> list[Tensor]:
    return [images(n, seed=n) for n in (16, 5, 1, 2)]


def _demo(corruption: str | None = None) -> list[Tensor]:
    pixels = torch.from_numpy(load_dataset("demo").images[:64].copy())
    if corruption:
        pixels = corrupt(pixels, corruption, severity=5, seed=0)
    return list((pixels.permute(0, 3, 1, 2).float() / 255).split(32))


def _load_demo() -> nn.Module:
    return sicl.load_model("demo", device="cpu")


def _spec(**changes: object) -> sicl.SICL:
    return sicl.SICL(**{**FEW, **changes})  # type: ignore[arg-type]


_PAPER = sicl.SICL.paper(variants=6, content_variants=6, precision="float32")

CASES: dict[str, Case] = {
    **{f"tent, {e}": Case(_spec(engine=e), TENT) for e in ("plain", "twin", "fused")},
    **{f"source, {e}": Case(_spec(engine=e)) for e in ("plain", "twin", "fused")},
    **{f"rotta, {e}": Case(_spec(engine=e), ROTTA) for e in ("plain", "twin", "fused")},
    **{f"tent on a vit, {e}": Case(_spec(engine=e), TENT, small_vit) for e in ("plain", "fused")},
    **{f"frozen, {e}": Case(_spec(engine=e, norm="frozen"), TENT) for e in ("plain", "twin", "fused")},
    **{f"{s} styles": Case(_spec(style=s), TENT) for s in ("gaussian", "mixstyle", "swap")},
    "swap styles of small batches": Case(_spec(), sicl.Source(), small_net, _small_batches),
    "gaussian styles of small batches": Case(_spec(style="gaussian"), TENT, small_vit, _small_batches),
    "as printed": Case(_PAPER, TENT),
    "as printed, source": Case(_PAPER),
    "as printed, small batches": Case(_PAPER, TENT, small_net, _small_batches),
    "as printed, one class after the other": Case(_PAPER, TENT, colours, _sorted_images),
    "adaptive": Case(_spec(variants="adaptive"), TENT),
    "adaptive, source": Case(_spec(variants="adaptive", engine="twin")),
    "adaptive and hard": Case(_spec(variants="adaptive", votes="hard", temper=False), TENT),
    "one channel unit": Case(_spec(style="gaussian", delta="global", components="mean"), TENT),
    "stds only": Case(_spec(style="gaussian", components="std", noise="independent"), TENT),
    "style alone": Case(_spec(members=("style",), relaxation="none", temper=False), TENT),
    "mirror alone": Case(_spec(members=("mirror",)), TENT),
    "content too": Case(_spec(members=("style", "content"), layer="auto"), TENT),
    "the network alone": Case(_spec(witnesses=("network",)), ROTTA),
    "all alike": Case(_spec(say="equal"), TENT),
    "small batches in company": Case(_spec(), TENT, small_net, _small_batches),
    "one class after the other in company": Case(_spec(), TENT, colours, _sorted_images),
    "few rows at once": Case(_spec(max_batch=8, norm="frozen"), TENT),
    "collapse": Case(_spec(), sicl.Tent(), colours, _colour_images, _collapse),
    "demo, tent": Case(_spec(), sicl.Tent(), _load_demo, _demo),
    "demo, noise, source": Case(_spec(), sicl.Source(), _load_demo, lambda: _demo("speckle_noise")),
    "demo, noise, rotta": Case(_spec(), sicl.Rotta(), _load_demo, lambda: _demo("speckle_noise")),
}


@contextmanager
def _one_thread() -> Iterator[None]:
    """The order of additions follows from the number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def values_of(case: Case) -> dict[str, Tensor]:
    """Return confidence and signals of every batch, by "batch name"."""
    with _one_thread():
        adapter = case.method.attach(case.network())
        trusted = case.spec.attach(adapter)
        found: dict[str, Tensor] = {}
        for number, batch in enumerate(case.stream()):
            out = trusted(batch)
            found |= {
                f"{number} {n}": v.float() for n, v in {"confidence": out.confidence, **out.signals}.items()
            }
            if number == 0:
                case.disturb(adapter.network)
        return found


def machine() -> str:
    """Return what decides the last bits: which kernels a library takes depends on the very processor."""
    cpu = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()} {cpu} {_processor()} torch {torch.__version__}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    known = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    told = [known.get(key, "") for key in ("vendor_id", "cpu family", "model", "stepping", "flags")]
    return hashlib.sha256(" ".join(told).encode()).hexdigest()[:12]


def on_file() -> tuple[str, dict[str, dict[str, Tensor]]]:
    """Return the machine that wrote the file, and the values of each case."""
    kept = np.load(FILE)
    values = torch.from_numpy(kept["values"]).split(kept["sizes"].tolist())
    found: dict[str, dict[str, Tensor]] = {}
    for key, scalar, value in zip(kept["keys"].tolist(), kept["scalar"].tolist(), values):
        case, name = key.split("/", 1)
        found.setdefault(case, {})[name] = value[0] if scalar else value
    return str(kept["machine"]), found


def main() -> None:
    """Write the file."""
    all_of = {f"{n}/{key}": v for n, case in CASES.items() for key, v in values_of(case).items()}
    np.savez_compressed(
        FILE,
        machine=np.array(machine()),
        keys=np.array(list(all_of)),
        scalar=np.array([value.ndim == 0 for value in all_of.values()]),
        sizes=np.array([value.numel() for value in all_of.values()]),
        values=torch.cat([value.flatten() for value in all_of.values()]).numpy(),
    )
    print(f"{len(CASES)} cases, {len(all_of)} values, {FILE.stat().st_size} bytes, {machine()}")


if __name__ == "__main__":
    main()
