"""Calibrators for the paper's figures: one perturbation each, and what it does to content and style."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from sicl import perturb
from sicl.adapt import Adapter, Moment
from sicl.calibrate import Calibration, Calibrator, as_it_predicts, batches, device_of, require_source
from sicl.calibrate.mc_dropout import dropout_places
from sicl.calibrate.sicl.variants import beta
from sicl.engine.head import find_head
from sicl.engine.norms import statistics_for
from sicl.engine.split import Begun, Split
from sicl.errors import OptionError, require_positive
from sicl.metrics import ClassStatistics, style_variance
from sicl.types import SourceData

STAGES = 4


@dataclass(frozen=True, kw_only=True)
class Perturbed(Calibrator):
    """The share of perturbed variants that keep the predicted class (Figure 3a of the paper).

    Args:
        kind: "style" (Gaussian noise on channel statistics), "content" (noise on whitened features),
            "mixstyle" (Beta(0.1, 0.1)) or "dropout" (element-wise, after this layer and the later stages, as
            MC Dropout has it).
        variants: how many.
        layer: where to perturb.
        norm: batch norms during variants.
        p: of dropout.
        seed: of the noise.
    """

    kind: Literal["style", "content", "mixstyle", "dropout"] = "style"
    variants: int = 20
    layer: str = "auto"
    norm: Literal["frozen", "batch"] = "batch"
    p: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        require_positive(variants=self.variants)
        if not 0 < self.p < 1:
            raise OptionError(f"`p` must lie in (0, 1), got {self.p!r}.")

    def calibration(self, adapter: Adapter, *, source: SourceData | None = None) -> Calibration:
        """Return the live calibration; source data is not used."""
        return _PerturbedCalibration(self, adapter)


@dataclass(frozen=True, kw_only=True)
class Measured(Perturbed):
    """As `Perturbed`, and adds mean ContentVariance and StyleVariance to the record (Figures 3b and 5).

    Content: the embedding before the last linear layer, against the predicted class's centroid and covariance
    on source data. Style: the Gram matrix of the perturbed features themselves.

    Args:
        shrinkage: of the class covariances towards a multiple of the identity.
    """

    needs_source: ClassVar[bool] = True
    shrinkage: float = 0.1

    def calibration(self, adapter: Adapter, *, source: SourceData | None = None) -> Calibration:
        """Return the live calibration; it fits the classes' statistics on the source data now."""
        return _MeasuredCalibration(self, adapter, require_source(source, calibrator="Measured"))


class _PerturbedCalibration(Calibration):
    def __init__(self, spec: Perturbed, adapter: Adapter) -> None:
        self.spec = spec
        self.split = Split(adapter.network, spec.layer, statistics=statistics_for(spec.norm))
        self.later: list[nn.Module] = []
        if spec.kind == "dropout":
            names = dropout_places(adapter.network, STAGES)
            self.later = [adapter.network.get_submodule(name) for name in names[1:]]
        self.generator = torch.Generator(device_of(adapter.network))
        self.reset()

    def reset(self) -> None:
        """Start the noise anew."""
        self.generator.manual_seed(self.spec.seed)

    def confidence(self, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the share of variants that keep the class."""
        labels = moment.logits.argmax(dim=1)
        begun = self.split.run(moment.images)
        kept = torch.zeros(len(labels), device=labels.device)
        for _ in range(self.spec.variants):
            logits = self.resume(self.variant(begun.features), begun)
            kept += (logits.argmax(dim=1) == labels).float()
        return kept / self.spec.variants, {}

    def resume(self, variant: Tensor, begun: Begun) -> Tensor:
        """Return a variant's logits; dropout goes on after the later stages."""
        with ExitStack() as stack:
            for module in self.later:
                hook = module.register_forward_hook(lambda _module, _args, output: self._dropped(output))
                stack.callback(hook.remove)
            return self.split.resume(variant, begun)

    def _dropped(self, features: Tensor) -> Tensor:
        keep = torch.rand(features.shape, generator=self.generator, device=features.device) >= self.spec.p
        return perturb.dropout_variants(features, keep.unsqueeze(0), self.spec.p)

    def variant(self, features: Tensor) -> Tensor:
        """Return one perturbed copy of the features."""
        mean, std = perturb.style_statistics(features)
        if self.spec.kind == "content":
            return perturb.content_variants(
                features, std, self._normal((1, *features.shape)).to(features.dtype)
            )
        if self.spec.kind == "dropout":
            return self._dropped(features)
        if self.spec.kind == "mixstyle":
            partner = torch.rand((1, len(mean)), generator=self.generator, device=mean.device).argsort(dim=1)
            share = beta(0.1, (1, len(mean)), self.generator)
            return perturb.apply_map(features, *perturb.mixstyle_map(mean, std, partner, share))
        noise = perturb.spread(mean) * self._normal((2, 1, *mean.shape))
        return perturb.apply_map(features, *perturb.style_map(mean, std, noise[0], noise[1]))

    def _normal(self, size: tuple[int, ...]) -> Tensor:
        return torch.randn(size, generator=self.generator, device=self.generator.device)

    def state_dict(self) -> dict[str, Any]:
        """Return the noise's state."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self.generator.set_state(state["generator"])


class _MeasuredCalibration(_PerturbedCalibration):
    def __init__(self, spec: Measured, adapter: Adapter, source: SourceData) -> None:
        super().__init__(spec, adapter)
        parts = batches(source.images[:2], 256, adapter.network)
        with as_it_predicts(adapter.network):
            self.head = adapter.network.get_submodule(find_head(adapter.network, next(parts)))
        embeddings = []
        with as_it_predicts(adapter.network), _inputs_of(self.head) as seen:
            for part in batches(source.images, 256, adapter.network):
                adapter.network(part)
                embeddings.append(seen.pop())
        labels = source.labels.to(embeddings[0].device)
        n_classes = int(labels.max()) + 1
        statistics = ClassStatistics.fit(
            torch.cat(embeddings), labels, n_classes=n_classes, shrinkage=spec.shrinkage
        )
        self.centroids = statistics.centroids
        self.factors = torch.linalg.cholesky(statistics.covariances)
        self.sums = {"content_variance": 0.0, "style_variance": 0.0}
        self.count = 0

    def confidence(self, moment: Moment) -> tuple[Tensor, dict[str, Tensor]]:
        labels = moment.logits.argmax(dim=1)
        kept = torch.zeros(len(labels), device=labels.device)
        moved, style = torch.zeros_like(kept).double(), torch.zeros_like(kept).double()
        with _inputs_of(self.head) as seen:
            begun = self.split.run(moment.images)
            original = self._distance(seen.pop(), labels)
            maps = _as_maps(begun.features)
            for _ in range(self.spec.variants):
                changed = self.variant(begun.features)
                logits = self.resume(changed, begun)
                kept += (logits.argmax(dim=1) == labels).float()
                moved += self._distance(seen.pop(), labels)
                style += style_variance(maps, _as_maps(changed).unsqueeze(0))
        content = (original - moved / self.spec.variants).abs()
        self.sums["content_variance"] += float(content.sum())
        self.sums["style_variance"] += float(style.sum()) / self.spec.variants
        self.count += len(labels)
        return kept / self.spec.variants, {"content_variance": content}

    def summary(self) -> dict[str, float]:
        """Return the means over all samples so far."""
        return {name: total / max(self.count, 1) for name, total in self.sums.items()}

    def _distance(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return each embedding's Mahalanobis distance to its class, one triangular solve a class."""
        distance = torch.zeros(len(labels), dtype=torch.float64, device=labels.device)
        offset = embeddings.double() - self.centroids[labels]
        for label in set(labels.tolist()):
            chosen = labels == label
            white = torch.linalg.solve_triangular(self.factors[label], offset[chosen].T, upper=False)
            distance[chosen] = torch.linalg.vector_norm(white, dim=0)
        return distance


@contextmanager
def _inputs_of(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Keep what a layer is given while the block runs."""
    seen: list[Tensor] = []

    def keep(_module: nn.Module, args: tuple[Any, ...]) -> None:
        seen.clear()
        seen.append(args[0].detach())

    handle = layer.register_forward_pre_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


def _as_maps(features: Tensor) -> Tensor:
    """Return features as N x C x L: tokens have their channels last."""
    return features.flatten(2) if features.ndim == 4 else features.transpose(1, 2)
