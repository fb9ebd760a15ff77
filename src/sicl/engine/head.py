"""Find a classifier's head, and take the features that enter it while it classifies."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from sicl.engine.split import logits_of
from sicl.errors import OptionError, UnsupportedModelError, nearest


@torch.no_grad()
def find_head(model: nn.Module, images: Tensor) -> str:
    """Return the name of the classifier head: the last linear layer that a forward pass calls.

    Args:
        model: any module that returns logits or an object with `.logits`.
        images: a batch to run; what the order of calls is shows only when the model runs.

    Raises:
        UnsupportedModelError: the model calls no linear layer.
    """
    # By the order of calls: a head may be defined before the layers that feed it.
    called: list[str] = []
    # Hooks on layers only: a hook on every module would slow a deep network down.
    names = {module: name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    with ExitStack() as hooks:
        for linear in names:
            hook = linear.register_forward_hook(lambda module, _args, _output: called.append(names[module]))
            hooks.enter_context(hook)
        model(images)
    if not called:
        raise UnsupportedModelError(
            f"{type(model).__name__} calls no linear layer, so its head is not clear; name the module whose "
            "input are the features."
        )
    return called[-1]


def penultimate(model: nn.Module, head: str, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return (N x D features that enter the head, N x C logits) of one forward pass.

    Features with more dimensions (tokens, feature maps) are averaged over all but the first and the channels.

    Args:
        model: any classifier.
        head: the name that `find_head` gave, or of any module.
        images: N x C x H x W.

    Raises:
        OptionError: no module has that name.
        UnsupportedModelError: the model never called it.
    """
    modules = dict(model.named_modules())
    if head not in modules:
        raise OptionError(
            f"`head` must name a module of {type(model).__name__}; it has no {head!r}."
            f"{nearest(head, modules)}"
        )
    seen: list[Tensor] = []

    def hook(_module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(args[0] if args else next(iter(kwargs.values())))

    with modules[head].register_forward_pre_hook(hook, with_kwargs=True):
        logits = logits_of(model(images))
    if not seen:
        raise UnsupportedModelError(f"{type(model).__name__} never called its module {head!r}; name another.")
    # The last call: a shared head may be used for an auxiliary output first.
    features = seen[-1]
    dims = {4: (2, 3), 3: (1,)}.get(features.ndim)
    return features if dims is None else features.mean(dim=dims), logits
