"""What the methods that learn share: how an optimizer is made, one descent (SAM's too), and its state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from sicl.adapt._base import Adapter, Method
from sicl.adapt._images import ONE_VALUE
from sicl.states import require_moments

OptimizerName = Literal["adam", "sgd"]


def make_optimizer(
    name: OptimizerName, parameters: Iterable[nn.Parameter], *, lr: float, nesterov: bool = False
) -> torch.optim.Optimizer:
    """Return Adam (betas 0.9, 0.999) or SGD (momentum 0.9, Nesterov's or plain), without weight decay."""
    if name == "adam":
        return torch.optim.Adam(parameters, lr=lr, betas=(0.9, 0.999))
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=nesterov)


class Learner(Adapter):
    """An adapter that moves parameters by gradient descent.

    `remembers` names what is part of its state besides: tensors, lists of them, numbers, and what has a
    `state_dict` of its own.

    Args:
        spec: the method's configuration.
        network: the private copy that predicts.
        optimizer: over the parameters that move; its state is part of the adapter's.
    """

    writes: ClassVar[Literal["none", "counted", "any"]] = "counted"
    remembers: ClassVar[tuple[str, ...]] = ()

    def __init__(self, spec: Method, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__(spec, network)
        self.optimizer = optimizer

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The parameters that move."""
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]

    def forward_part(self, images: Tensor, batch: Tensor) -> Tensor | None:
        """Return the logits of a part of a batch; None for one image of several that has no statistics alone."""
        try:
            return self.forward(images)
        except ValueError as error:
            if ONE_VALUE not in str(error) or len(batch) == 1:
                raise
            return None

    def backward(self, loss: Tensor) -> None:
        """Compute fresh gradients of a loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]

    def descend(self, loss: Tensor) -> None:
        """Take one step down the gradient of a loss."""
        self.backward(loss)
        self.optimizer.step()
        self.count("updates", 1)

    def moving(self) -> list[Tensor]:
        """Return the parameters that move."""
        return [parameter.detach() for parameter in self.parameters]

    def get_state(self) -> dict[str, Any]:
        """Return the adapter's state, the optimizer's, and what it remembers."""
        parts = {name: getattr(self, name) for name in ("optimizer", *self.remembers)}
        own = {n: p.state_dict() if hasattr(p, "state_dict") else p for n, p in parts.items()}
        return {**super().get_state(), **own}

    def set_state(self, state: dict[str, Any]) -> None:
        """Take over all three."""
        super().set_state(state)
        self.optimizer.load_state_dict(state["optimizer"])
        require_moments(self.optimizer)
        for name in self.remembers:
            part, value = getattr(self, name), self.here(state[name])
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(value)
            else:
                setattr(self, name, value)


class Sam:
    """The two moves of SAM around any optimizer: gradient, `ascend`, gradient again, `descend`.

    Args:
        optimizer: makes the descent; its parameters are the ones that move.
        rho: the L2 radius of the ascent.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, rho: float) -> None:
        self.optimizer = optimizer
        self.rho = rho
        self._moved: list[Tensor] = []
        self._before: list[Tensor] = []

    @torch.no_grad()
    def ascend(self) -> None:
        """Move the parameters by rho * g / ||g||, and drop the gradients."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        self._moved = [p for p in parameters if p.grad is not None]
        self._before = [p.clone() for p in self._moved]
        gradients = [p.grad for p in self._moved if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        scale = self.rho / (norm + 1e-12)
        torch._foreach_add_(self._moved, list(torch._foreach_mul(gradients, scale)))
        self.optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def descend(self) -> None:
        """Move back, and take the optimizer's step with the gradient found up there."""
        torch._foreach_copy_(self._moved, self._before)
        self._moved, self._before = [], []
        self.optimizer.step()
