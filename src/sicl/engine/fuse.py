"""Rewrite a traced graph so that convolutions and norms do the additions and ReLUs that follow them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from sicl.engine.kernels.vendor import Kernels
from sicl.engine.twin import Slot

_ATEN = torch.ops.aten
_RELUS = (_ATEN.relu.default, _ATEN.relu_.default)
_ADDS = (_ATEN.add.Tensor, _ATEN.add_.Tensor)


def fuse_convolutions(graph: fx.Graph, kernels: Kernels) -> None:
    """Let convolutions do the ReLU, or the addition and the ReLU, that follow them."""
    for node in list(graph.nodes):
        # From the ReLU backwards: it is the end of what a kernel can do at once.
        if node.target not in _RELUS:
            continue
        before = node.args[0]
        if _is_convolution(before) and len(before.users) == 1:
            _replace(graph, before, node, kernels.relu, before.args)
        # A value that somebody else reads too has to be written out, so it cannot vanish into a kernel.
        elif isinstance(before, fx.Node) and before.target in _ADDS and len(before.users) == 1:
            pair = _addition(before)
            if pair is not None:
                convolution, other = pair
                with graph.inserting_before(before):
                    args = _with_one_bias(graph, convolution, other)
                _replace(graph, convolution, node, kernels.add_relu, (*args, other))


def _with_one_bias(graph: fx.Graph, convolution: fx.Node, other: fx.Node) -> tuple[Any, ...]:
    """The arguments of a convolution that adds the bias of the other one too, which then has none.

    A bias of its own costs the convolution of a shortcut a whole pass over its output.
    """
    image, weight, bias, *rest = convolution.args
    if _is_convolution(other) and len(other.users) == 1:
        # Added in the graph, not here: biases change with every batch that a method learns from.
        bias = graph.call_function(torch.add, (bias, other.args[2]))
        other.args = (*other.args[:2], None, *other.args[3:])
    return (image, weight, bias, *rest)


def fuse_norms(graph: fx.Graph, slots: dict[Any, Slot], groups: int, kernel: Callable[..., Tensor]) -> None:
    """Let norms of stacked batches do the ReLU, or the addition and the ReLU, that follow them.

    Args:
        graph: to rewrite.
        slots: the norms, by the functions that stand for them in the graph.
        groups: how many batches are stacked.
        kernel: as `sicl.engine.kernels.norm.grouped_norm`; frozen norms have it keep their statistics.
    """
    for node in [n for n in graph.nodes if n.op == "call_function" and n.target in slots]:
        # The kernel reads feature maps; norms of vectors stay as they are.
        if node.meta["val"].ndim != 4:
            continue
        relu, other = _then(node, _RELUS), None
        addition = _then(node, _ADDS)
        # Only the addition with its ReLU is one kernel; the addition alone stays an addition.
        if addition is not None and _then(addition, _RELUS) is not None:
            other = _other_operand(addition, node)
            relu = None if other is None else _then(addition, _RELUS)
        last = node if relu is None else relu
        function = _norm_kernel(kernel, slots[node.target], groups, relu=last is not node)
        _replace(graph, node, last, function, (node.args[0], *([] if other is None else [other])))


def _norm_kernel(kernel: Callable[..., Tensor], slot: Slot, groups: int, *, relu: bool) -> Any:
    # A frozen norm is only left in the pass that records: that is where its statistics are wanted.
    keep = (slot.mean, slot.variance) if slot.statistics == "frozen" else None

    def norm(x: Tensor, other: Tensor | None = None) -> Tensor:
        # Looked up at each call: the live parameters are copied into the same tensors.
        own = slot.own
        return kernel(x, groups, own.weight, own.bias, own.eps, other=other, relu=relu, keep=keep)

    return norm


def _then(node: fx.Node, targets: tuple[Any, ...]) -> fx.Node | None:
    """The one node that reads this one, if it is one of these operators."""
    users = list(node.users)
    return users[0] if len(users) == 1 and users[0].target in targets else None


def _other_operand(addition: fx.Node, node: fx.Node) -> fx.Node | None:
    """What is added to `node`, if it is a tensor of the same shape, added as it is."""
    left, right = addition.args[:2]
    other = right if left is node else left
    # The kernels add element by element, without broadcasting.
    if addition.kwargs or not isinstance(other, fx.Node) or left is right:
        return None
    return other if other.meta["val"].shape == node.meta["val"].shape else None


def _replace(graph: fx.Graph, first: fx.Node, last: fx.Node, function: Any, args: tuple[Any, ...]) -> None:
    """Put one call in the place of a chain of nodes."""
    with graph.inserting_before(last):
        new = graph.call_function(function, args)
    # Later rewrites read shapes from here.
    new.meta = dict(last.meta)
    last.replace_all_uses_with(new)
    while last is not first:
        # Users first: fx refuses to erase a node that is still read.
        before = next(a for a in last.args if isinstance(a, fx.Node) and (a is first or first in a.args))
        graph.erase_node(last)
        last = before
    graph.erase_node(first)


def _is_convolution(node: Any) -> bool:
    """A plain 2-D convolution with a bias, as the fused kernels want it."""
    return (
        isinstance(node, fx.Node)
        and node.target is _ATEN.convolution.default
        and node.args[2] is not None
        and len(node.args[3]) == 2  # type: ignore[arg-type]
        # Transposed convolutions have no fused kernel.
        and not node.args[6]
    )


def _addition(node: fx.Node) -> tuple[fx.Node, fx.Node] | None:
    """(convolution, other) if the sum has a convolution that is used nowhere else."""
    for convolution in node.args[:2]:
        if isinstance(convolution, fx.Node) and _is_convolution(convolution) and len(convolution.users) == 1:
            other = _other_operand(node, convolution)
            return None if other is None else (convolution, other)
    return None
