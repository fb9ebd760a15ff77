"""COME: conservatively minimise the entropy of opinions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sicl.adapt._optim import OptimizerName
from sicl.adapt.tent import Tent


@dataclass(frozen=True, kw_only=True)
class Come(Tent):
    """Minimise the entropy of an opinion that may stay uncertain (Zhang et al., 2025).

    The network's logits are read as evidence: beliefs in the classes and an uncertainty share one mass (see
    `sicl.adapt._objective.opinion_entropy`), and the norm of the logits is held while their entropy falls, so
    that a sample can become decided no further than its evidence goes. The step is TENT's; `Eata`, `Sar` and
    `Deyo` take the same objective (`Sar(objective="come")`).

    Args:
        lr: learning rate; 2.5e-4 for ResNets, 1e-3 for ViTs, at 64 images a batch.
        optimizer: "sgd" (momentum 0.9) or "adam".
        steps: gradient steps a batch.
        objective: "come", or "come-1000": as in the authors' code, which writes 1000 for the number of classes.

    Raises:
        OptionError: a value is out of range.
        UnsupportedModelError: the model has no norm layer with affine parameters (on `attach`).

    Differs from the reference implementation:
        - the number of classes is the network's (the reference: 1000; `objective="come-1000"`);
        - beliefs come from a softmax, which cannot overflow;
        - dropout stays off, and layer and group norms are trained in any network.
    """

    lr: float = 2.5e-4
    optimizer: OptimizerName = "sgd"
    objective: Literal["come", "come-1000"] = "come"
