"""What `overhead.py` times: a network and batch size, and every way to get a confidence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import sicl
from sicl import perturb
from sicl.adapt import Adapter, Moment
from sicl.engine.split import Split
from sicl.models.cifar import ARCHITECTURES

VARIANTS = 20
FORTY: dict[str, Any] = {
    "members": ("style",),
    "relaxation": "printed",
    "witnesses": ("network",),
    "say": "equal",
    "temper": False,
    "style": "gaussian",
    "layer": "auto",
    "content_layer": "auto",
    "variants": VARIANTS,
    "content_variants": VARIANTS,
}
SPECS: dict[str, dict[str, Any]] = {
    "sicl default": {},
    "sicl default adaptive": {"variants": "adaptive"},
    "sicl 20+20 frozen": {**FORTY, "norm": "frozen"},
    "sicl 20+20 batch": {**FORTY, "norm": "batch"},
    "sicl adaptive frozen": {**FORTY, "norm": "frozen", "variants": "adaptive"},
    "sicl adaptive batch": {**FORTY, "norm": "batch", "variants": "adaptive"},
}
LEVELS = ("plain", "twin", "traced", "graph")
NO_LANES = ", no lanes"
OTHERS: dict[str, dict[str, Any]] = {
    **{f"sicl default, {level}": {"engine": level} for level in LEVELS},
    f"sicl default{NO_LANES}": {},
    f"sicl default adaptive{NO_LANES}": {"variants": "adaptive"},
    **{f"sicl 20+20 batch, {level}": {**FORTY, "norm": "batch", "engine": level} for level in LEVELS},
    **{f"sicl 20+20 frozen, {level}": {**FORTY, "norm": "frozen", "engine": level} for level in LEVELS},
    "sicl 20+20 frozen, float32": {**FORTY, "norm": "frozen", "precision": "float32"},
}
"""What each level, and running engines beside each other, buys."""


class Case:
    """One network and batch size, with every way to be timed.

    Args:
        arch: a name of `sicl.models.cifar.ARCHITECTURES`.
        width: its width.
        batch: rows a batch.
        device: to run on.
    """

    def __init__(self, arch: str, width: int, batch: int, device: torch.device) -> None:
        torch.manual_seed(0)
        self.arch, self.width, self.batch, self.device = arch, width, batch, device
        self.model = ARCHITECTURES[arch](width=width).to(device).eval()
        self.images = torch.rand(batch, 3, 32, 32, device=device)
        self.adapter = sicl.Tent().attach(self.model)
        self.spare = sicl.Tent().attach(self.model)
        if batch > 1 or arch.startswith("vit"):
            self.adapter(self.images)
        logits = self._logits()
        self.moment = Moment(self.adapter.network, self.images, logits)

    @torch.no_grad()
    def _logits(self) -> Tensor:
        return self.adapter.forward(self.images).detach().float()

    def ways(self, names: list[str]) -> dict[str, Callable[[], Any]]:
        """Return what to time, by name; a way that cannot be built is a function that raises why."""
        out: dict[str, Callable[[], Any]] = {
            "forward": self._logits,
            "tent step": lambda: self.spare(self.images),
            "naive": Naive(self.adapter, self.images, self.moment.logits),
            "mc dropout 20": self._calibration(sicl.McDropout(passes=20)),
        }
        specs = {**SPECS, **OTHERS}
        for name in names:
            way = self._calibration(sicl.SICL(**specs[name]))
            way.calibration.graphs.lanes = not name.endswith(NO_LANES)
            out[name] = way
        with torch.no_grad():
            for parameter in self.adapter.network.parameters():
                # The network has adapted since, as far as a guard can see: its look at collapse counts too.
                parameter.add_(0.0)
        return out

    def _calibration(self, spec: Any) -> Calibrate:
        return Calibrate(spec.calibration(self.adapter), self.moment)

    def floor(self, peak: float) -> tuple[float, float]:
        """Return (seconds at `peak`, operations of the 40 suffix passes)."""
        split = Split(self.adapter.network)
        begun = split.begin(self.images[:2])
        with FlopCounterMode(display=False) as counter:
            split.resume(begun.features, begun)
        operations = counter.get_total_flops() / 2 * self.batch * 2 * VARIANTS
        return operations / peak, operations


class Calibrate:
    """One calibration of the same moment."""

    def __init__(self, calibration: Any, moment: Moment) -> None:
        self.calibration, self.moment = calibration, moment

    def __call__(self) -> Any:
        return self.calibration.predict(self.moment)


class Naive:
    """What anybody would write first: a hook that perturbs the layer, and a whole pass for each variant."""

    def __init__(self, adapter: Adapter, images: Tensor, logits: Tensor) -> None:
        self.network, self.images, self.labels = adapter.network, images, logits.argmax(dim=1)
        self.point = Split(adapter.network).point
        self.change: Callable[[Tensor], Tensor] = _style

    @torch.no_grad()
    def __call__(self) -> Tensor:
        module = self.network.get_submodule(self.point.name)
        if self.point.side == "output":
            handle = module.register_forward_hook(lambda _m, _a, out: self.change(out))
        else:
            handle = module.register_forward_pre_hook(lambda _m, args: (self.change(args[0]), *args[1:]))
        try:
            shares = []
            for self.change in (_style, _content):
                votes = [self.network(self.images).argmax(dim=1) == self.labels for _ in range(VARIANTS)]
                shares.append(torch.stack(votes).float().mean(dim=0))
        finally:
            handle.remove()
        return shares[0] * (1 - shares[1])


def _style(features: Tensor) -> Tensor:
    dims = (2, 3) if features.ndim == 4 else (1,)
    mean = features.mean(dims, keepdim=True)
    std = features.std(dims, keepdim=True) + perturb.EPSILON
    delta = mean.std(dim=0, keepdim=True) if len(mean) > 1 else torch.zeros_like(mean)
    new_std = std + delta * torch.randn_like(std)
    return new_std * (features - mean) / std + mean + delta * torch.randn_like(mean)


def _content(features: Tensor) -> Tensor:
    dims = (2, 3) if features.ndim == 4 else (1,)
    mean = features.mean(dims, keepdim=True)
    std = features.std(dims, keepdim=True) + perturb.EPSILON
    white = (features - mean) / std
    return std * (white + torch.randn_like(white)) + mean
