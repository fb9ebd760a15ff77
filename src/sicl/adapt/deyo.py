"""DeYO: destroy your object, and see what the prediction was made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sicl.adapt._base import Adapter, Method
from sicl.adapt._objective import Objective, uncertainty_of
from sicl.adapt._optim import Learner, OptimizerName, make_optimizer
from sicl.adapt._parameters import train_norm_affines, use_batch_statistics
from sicl.engine.variants import predicted_probability
from sicl.errors import require_between, require_positive
from sicl.types import SourceData

Destroy = Literal["patch", "pixel", "occlusion"]


@dataclass(frozen=True, kw_only=True)
class Deyo(Method):
    """Minimise the entropy of samples whose prediction falls with their shape destroyed (Lee et al., 2024).

    A sample counts if its entropy H is below `margin` ln C and if its predicted probability falls by more than
    `threshold` when the object is destroyed (PLPD): then the prediction rests on shape, not on what shuffled
    tiles still show. Its weight is exp(`weight_margin` ln C - H) + exp(PLPD). None counts: nothing moves.

    Args:
        lr: learning rate; 2.5e-4 for ResNets, 1e-3 for ViTs, with SGD at 64 images a batch.
        optimizer: "sgd" (momentum 0.9) or "adam".
        margin: the entropy limit as a share of ln C.
        weight_margin: E0 in the weight as a share of ln C.
        threshold: the fall of probability (tau); 0.3 for ImageNet-C, 0.2 for CIFAR and mixed streams.
        destroy: "patch" shuffles 4 x 4 tiles of each image, "pixel" all pixels alike in all images; "occlusion"
            fills the middle with the image's mean colour, and draws nothing at random.
        objective: "entropy", or "come": the entropy of COME's opinions, in filter, weight and loss.

    Raises:
        OptionError: a value is out of range.
        UnsupportedModelError: the model has no norm layer with affine parameters (on `attach`).

    Differs from the reference implementation:
        - dropout stays off; the random draws are the adapter's own;
        - a single chosen image of which a batch norm sees one value a channel is not learnt (the reference fails);
        - the last stage of other networks is found by `find_stages`, not by the names layer4 and blocks.9.
    """

    lr: float = 2.5e-4
    optimizer: OptimizerName = "sgd"
    margin: float = 0.5
    weight_margin: float = 0.4
    threshold: float = 0.3
    destroy: Destroy = "patch"
    objective: Objective = "entropy"

    def __post_init__(self) -> None:
        require_positive(lr=self.lr, margin=self.margin, weight_margin=self.weight_margin)
        require_between(-1.0, 1.0, threshold=self.threshold)

    def adapter(self, network: nn.Module, *, source: SourceData | None = None) -> Adapter:
        return DeyoAdapter(self, network)


class DeyoAdapter(Learner):
    """A network that lowers its entropy on samples it recognises by their shape."""

    spec: Deyo
    reuses_forward: ClassVar[bool] = True

    def __init__(self, spec: Deyo, network: nn.Module) -> None:
        use_batch_statistics(network)
        parameters = train_norm_affines(network, method="Deyo", layers="not_last_stage")
        super().__init__(spec, network, make_optimizer(spec.optimizer, parameters, lr=spec.lr))

    def update(self, images: Tensor, logits: Tensor | None) -> None:
        """Filter by entropy, then by the fall of probability, and take one weighted step."""
        logits = self.forward(images) if logits is None else logits
        scale = math.log(logits.shape[1])
        entropies = uncertainty_of(logits, self.spec.objective)
        sure = torch.where(entropies.detach() < self.spec.margin * scale)[0]
        if len(sure) == 0:
            return
        destroyed = destroyed_images(images[sure], self.spec.destroy, self.generator)
        with torch.no_grad():
            # Batch norms see the chosen images alone.
            after = self.forward_part(destroyed, images)
        if after is None:
            return
        probability, labels = logits.detach()[sure].float().softmax(dim=1).max(dim=1)
        # PLPD: by how much the predicted class's probability falls.
        fall = probability - predicted_probability(after, labels)
        kept = torch.where(fall > self.spec.threshold)[0]
        if len(kept) == 0:
            return
        entropies, fall = entropies[sure[kept]], fall[kept]
        weights = torch.exp(self.spec.weight_margin * scale - entropies.detach()) + torch.exp(fall)
        self.descend((weights * entropies).mean())
        self.count("kept", len(kept))


def destroyed_images(images: Tensor, how: Destroy, generator: torch.Generator) -> Tensor:
    """Return the images with their objects destroyed; `generator` is on the host."""
    n, channels, height, width = images.shape
    if how == "occlusion":
        out = images.clone()
        rows, columns = (slice(side // 4, side // 4 + side // 2) for side in (height, width))
        out[:, :, rows, columns] = images.mean(dim=(2, 3), keepdim=True)
        return out
    if how == "pixel":
        order = torch.randperm(height * width, generator=generator).to(images.device)
        return images.flatten(2)[:, :, order].view_as(images)
    size = (max(height // 4, 1) * 4, max(width // 4, 1) * 4)
    fitting = images if size == (height, width) else _resized(images, size)
    high, wide = size[0] // 4, size[1] // 4
    tiles = fitting.view(n, channels, 4, high, 4, wide).permute(0, 2, 4, 1, 3, 5).reshape(n, 16, -1)
    order = torch.rand(n, 16, generator=generator).argsort(dim=1).to(images.device)
    tiles = tiles.gather(1, order.unsqueeze(2).expand_as(tiles))
    mixed = tiles.view(n, 4, 4, channels, high, wide).permute(0, 3, 1, 4, 2, 5).reshape(n, channels, *size)
    return mixed if size == (height, width) else _resized(mixed, (height, width))


def _resized(images: Tensor, size: tuple[int, int]) -> Tensor:
    return F.interpolate(images, size=size, mode="bilinear", antialias=True, align_corners=False)
