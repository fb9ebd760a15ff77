"""Find where a network's stages end, so that SICL knows where style lives without asking the author."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from torch import nn

from sicl.engine.norms import norm_layers
from sicl.errors import OptionError, UnsupportedModelError, nearest

_NUMBERED = re.compile(r"^(layer|stage|block|denseblock|s)_?(\d+)(_x)?$")
_POOLS = (nn.MaxPool2d, nn.AvgPool2d)
_CONVS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Point:
    """A place in a network: the output (or the input) of the module called `name`."""

    name: str
    side: Literal["output", "input"] = "output"

    def __str__(self) -> str:
        return self.name if self.side == "output" else f"{self.name}:input"


def find_point(model: nn.Module, layer: str = "auto") -> Point:
    """Return the place that `layer` names.

    Args:
        model: any classifier.
        layer: a module's name, "NAME:input" for what goes into it, "auto": the output of the first stage
            (convolutional networks) or the tokens that enter the first block (transformers), or "stem":
            what enters the first stage.

    Raises:
        OptionError: no module has that name.
        UnsupportedModelError: "auto" found no layer to perturb.
    """
    if layer in ("auto", "stem"):
        point = _first_point(model)
        # What enters a plain layer may be the images themselves: only a composite stage has a stem before it.
        composite = any(True for _ in model.get_submodule(point.name).children())
        if layer == "stem" and composite:
            return Point(_called(model, point.name, 0), "input")
        return Point(_called(model, point.name, 0 if point.side == "input" else -1), point.side)
    name, _, side = layer.partition(":")
    names = [n for n, _ in model.named_modules() if n]
    if name not in names:
        raise OptionError(
            f"`layer` must name a module of {type(model).__name__}; it has no {name!r}."
            + (nearest(name, names) or f" Its first modules are {', '.join(names[:6])}.")
        )
    if side not in ("", "input", "output"):
        raise OptionError(f"`layer` must end in ':input' or ':output' or neither, got {layer!r}.")
    return Point(name, "input" if side == "input" else "output")


def _called(model: nn.Module, name: str, end: Literal[0, -1]) -> str:
    """Return the name itself, or of the first or last module in a bare list, which nobody calls."""
    module = model.get_submodule(name)
    while isinstance(module, nn.ModuleList):
        name, module = f"{name}.{range(len(module))[end]}", module[end]
    return name


def find_stages(model: nn.Module) -> list[str]:
    """Return the names of the network's stages in order: ResNet stages, transformer blocks, VGG stages."""
    # Named stages tell more than their layers; norms alone are the last resort.
    stages = _transformer_blocks(model) or _composite_stages(model) or _sequential_stages(model)
    return stages or [name for name, _ in norm_layers(model)]


def _composite_stages(model: nn.Module) -> list[str]:
    return _numbered_stages(model) or _listed_stages(model)


def _first_point(model: nn.Module) -> Point:
    blocks = _transformer_blocks(model)
    if blocks:
        # Where tokens have not been mixed yet, like feature maps before the first stage.
        return Point(blocks[0], "input")
    stages = find_stages(model) or [n for n, module in model.named_modules() if isinstance(module, _CONVS)]
    if stages:
        return Point(stages[0])
    raise UnsupportedModelError(
        f"SICL found no convolution, norm layer or transformer block in {type(model).__name__} to perturb; "
        "name one of its modules with `layer=`."
    )


def _children(name: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(f"{name}.{n}" if name else n, child) for n, child in module.named_children()]


def _count(module: nn.Module, kinds: tuple[type, ...]) -> int:
    return sum(isinstance(m, kinds) for m in module.modules())


def _transformer_blocks(model: nn.Module) -> list[str]:
    """The first list of two or more alike blocks that have layer norms and linear maps but no convolution.

    None where stages of convolutions come before it, or hold it: a hybrid is cut at its first stage.
    """
    stages = _composite_stages(model)
    for name, module in model.named_modules():
        # Modules come in definition order: the stage stands before any block.
        if stages and name == stages[0]:
            return []
        if not isinstance(module, nn.ModuleList | nn.Sequential) or len(module) < 2:
            continue
        children = _children(name, module)
        # A list of unlike children is a whole network written as a sequence.
        alike = len({type(child) for _, child in children}) == 1
        if alike and all(_is_transformer_block(child) for _, child in children):
            return [n for n, _ in children]
    return []


def _is_transformer_block(module: nn.Module) -> bool:
    norms, linears = _count(module, (nn.LayerNorm,)), _count(module, (nn.Linear,))
    return norms > 0 and linears > 1 and not _count(module, _CONVS)


def _numbered_stages(model: nn.Module) -> list[str]:
    """Siblings called layer1, stage2, ... that are containers with convolutions (torchvision, timm)."""
    for parent_name, parent in model.named_modules():
        children = _children(parent_name, parent)
        numbered = [(n, child) for n, child in children if _NUMBERED.match(n.rpartition(".")[2])]
        names = [n for n, child in numbered if any(True for _ in child.children()) and _count(child, _CONVS)]
        # One numbered child is a coincidence of names.
        if len(names) >= 2:
            return names
    return []


def _listed_stages(model: nn.Module) -> list[str]:
    """The children of the first list or sequence that holds two or more containers with several convolutions."""
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or "stem" in name.rpartition(".")[2]:
            continue
        # A container with one convolution is a stem or a downsampler, not a stage.
        stages = [n for n, child in _children(name, module) if _count(child, _CONVS) > 1]
        if len(stages) >= 2:
            return stages
    return []


def _sequential_stages(model: nn.Module) -> list[str]:
    """VGG-like: in a flat sequence of convolutions a stage ends just before a pooling layer."""
    for name, module in model.named_modules():
        if not isinstance(module, nn.Sequential) or sum(isinstance(m, _CONVS) for m in module) < 2:
            continue
        children = _children(name, module)
        ends = [children[i - 1][0] for i, (_, m) in enumerate(children) if i and isinstance(m, _POOLS)]
        return ends or _after_norms(children)
    return []


def _after_norms(children: list[tuple[str, nn.Module]]) -> list[str]:
    """Without pooling: after each norm layer, or after the activation that follows it."""
    ends = []
    for i, (name, module) in enumerate(children):
        if norm_layers(module):
            following = children[i + 1] if i + 1 < len(children) else None
            plain = following is not None and not any(True for _ in following[1].parameters())
            # An activation belongs to the norm before it: what it cuts off is no part of the style.
            ends.append(following[0] if following is not None and plain else name)
    return ends
