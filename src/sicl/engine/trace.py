"""The rest of a network as a flat list of kernels: batch norms folded, activations fused into convolutions."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, fx, nn

from sicl.engine.fuse import fuse_convolutions, fuse_norms
from sicl.engine.graphs import relative_error
from sicl.engine.kernels.vendor import kernels_for
from sicl.engine.twin import CannotTwin, Slot, Twin

_CONVOLUTION = torch.ops.aten.convolution.default
TOLERANCE = {torch.float32: 0.01, torch.bfloat16: 0.4}
"""How far logits may be from those of the slower way, relative to their size. Rounding only (TF32 has much of
it, and the logits of an untrained network are mostly rounding in bfloat16); a wrong pass is off by 100 %."""


class Traced:
    """`traced(features)` gives float32 logits of `groups` stacked batches, for one shape of features.

    Traced once from the twin, so the network's own Python code no longer runs. A batch norm with running or frozen
    statistics right after a convolution is folded into its weights; ReLU and residual additions after it become
    part of the convolution where the backend has such a kernel.

    Args:
        twin: the copy to trace.
        features: an example, as it will be called.
        groups: how many batches are stacked in it.
        records: make the pass that records the clean batch's statistics, instead of one for variants.

    Raises:
        CannotTwin: tracing failed.
    """

    def __init__(self, twin: Twin, features: Tensor, groups: int, *, records: bool = False) -> None:
        self.twin, self.groups, self.records = twin, groups, records
        self.device = features.device
        self.notes: list[str] = []
        self._folds: list[Fold] = []
        self._norms: dict[Any, Slot] = {}
        try:
            # The network's Python runs once here, and never again for this shape.
            self.module = _traced(twin, features, groups)
            self._replace_norms()
            self.module.graph.eliminate_dead_code()
            self.module.recompile()
        except Exception as error:
            raise CannotTwin(f"the network cannot be traced ({type(error).__name__}: {error})") from error
        # Plain kernels until `settle` has compared the fused ones with them.
        self._call: Callable[[Tensor], Tensor] = self.module
        used = (n for n in self.module.graph.nodes if n.op == "get_attr")
        self._used = {id(_value(self.module, node)) for node in used}
        # A folded norm's parameters are read from the live layer, so only the others are copied.
        self._used |= {id(p) for slot in self._norms.values() for p in slot.own.parameters(recurse=False)}

    @torch.no_grad()
    def load(self, moments: Tensor) -> None:
        """Take over what this pass needs of the live network, in place; folded norms go into the weights.

        Args:
            moments: the statistics of the batch norms, as `Twin.stage` gives them.
        """
        self.twin.load(moments, self._used)
        # In the recording pass too: what is folded there are the norms with running statistics.
        if self._folds:
            biases = [fold.write() for fold in self._folds]
            # All biases by one launch: there is one for each norm of the network.
            torch._foreach_copy_([fold.bias for fold in self._folds], biases)

    @torch.no_grad()
    def settle(self, features: Tensor) -> None:
        """Take the fused kernels, if they run here and give the same logits.

        Args:
            features: an example; the network must be loaded.

        Raises:
            CannotTwin: not even the plain kernels run.
        """
        # Chosen by what they compute, never by a clock: a timing on a busy device would choose at random.
        plain = self._call = self.module
        try:
            expected = self(features)
        except Exception as error:
            raise CannotTwin(f"the traced network does not run ({error})") from error
        try:
            self._call = self._with_fused_kernels()
            off = relative_error(self(features), expected)
            if not off < TOLERANCE[self.twin.dtype]:
                raise RuntimeError(f"logits differ by {off:.1%}")
        except Exception as error:
            self._call = plain
            self.notes.append(f"no fused kernels: {error}")

    def _with_fused_kernels(self) -> fx.GraphModule:
        """A module with the same tensors, whose convolutions and norms do what follows them."""
        # The graph is copied, so that the plain module stays as it is.
        kernels = kernels_for(self.device)
        if kernels is None:
            return self.module
        graph = fx.Graph()
        graph.output(graph.graph_copy(self.module.graph, {}))
        fuse_convolutions(graph, kernels)
        if kernels.norm is not None:
            fuse_norms(graph, self._norms, self.groups, kernels.norm)
        graph.eliminate_dead_code()
        return fx.GraphModule(self.module, graph)

    @torch.no_grad()
    def __call__(self, features: Tensor) -> Tensor:
        logits: Tensor = self._call(features)
        return logits.float()

    def _replace_norms(self) -> None:
        graph = self.module.graph
        for node in [n for n in graph.nodes if n.target is _marker()]:
            before, index = node.args
            slot = self.twin.slots[index]
            # Fixed statistics make the norm an affine map, which a convolution can take over.
            fixed = slot.statistics == "running" or (slot.statistics == "frozen" and not self.records)
            # A convolution that something else reads too must keep its own weights.
            if fixed and before.target is _CONVOLUTION and len(before.users) == 1:
                self._folds.append(Fold(self.module, self.twin, before, slot, len(self._folds)))
                node.replace_all_uses_with(before)
            else:
                with graph.inserting_before(node):
                    new = graph.call_function(self._norm_function(slot, fixed), (before,))
                new.meta = dict(node.meta)
                node.replace_all_uses_with(new)
            graph.erase_node(node)

    def _norm_function(self, slot: Slot, fixed: bool) -> Callable[[Tensor], Tensor]:
        def norm(x: Tensor) -> Tensor:
            if fixed:
                return slot.fixed(x)
            return slot.recording(x) if slot.statistics == "frozen" else slot.grouped(x, self.groups)

        if not fixed:
            self._norms[norm] = slot
        return norm


class Fold:
    """A batch norm folded into the convolution before it: W' = scale W, b' = scale b + shift.

    Folding starts from the live weights in full precision. The convolution's node is given the folded ones.
    """

    def __init__(self, module: fx.GraphModule, twin: Twin, node: fx.Node, slot: Slot, number: int) -> None:
        self.slot = slot
        # The live tensors are found by where they stand: adaptation may put new ones there.
        places = {id(target): (table, name) for target, table, name in twin.sources}
        own = [_value(module, value) for value in node.args[1:3] if value is not None]
        if any(id(tensor) not in places for tensor in own):
            raise CannotTwin("a convolution's weight is no parameter")
        self._live = [places[id(tensor)] for tensor in own]
        # One pair for all shapes that are traced from a twin: prepared once a batch, held once.
        key = (id(own[0]), id(slot))
        if key not in twin.folded:
            weight = torch.empty_like(own[0])
            twin.folded[key] = (weight, weight.new_empty(len(weight)))
        self.weight, self.bias = twin.folded[key]
        with module.graph.inserting_before(node):
            nodes = []
            for name, tensor in (("weight", self.weight), ("bias", self.bias)):
                module.register_buffer(f"folded_{name}_{number}", tensor)
                nodes.append(module.graph.get_attr(f"folded_{name}_{number}"))
        node.args = (node.args[0], *nodes, *node.args[3:])

    def write(self) -> Tensor:
        """Write the folded weight, in place; return what the bias will be."""
        weight, *bias = (table[name] for table, name in self._live)
        scale, shift = self.slot.scale, self.slot.shift
        # Into the same memory: a captured graph has its address.
        torch.mul(weight, scale.view(-1, *[1] * (weight.ndim - 1)), out=self.weight)
        return torch.addcmul(shift, bias[0], scale) if bias else shift


def _value(module: nn.Module, node: Any) -> Tensor:
    if not isinstance(node, fx.Node) or node.op != "get_attr":
        raise CannotTwin("a convolution's weight is computed, not a parameter")
    value: Tensor = operator.attrgetter(str(node.target))(module)
    return value


def _marker() -> Any:
    """An operator that stands for "the batch norm number `index`" in a traced graph."""
    _library()
    return torch.ops.sicl.norm.default


@functools.cache
def _library() -> Any:
    # Cached, and so kept: torch forgets the operators of a library that nobody holds.
    library = torch.library.Library("sicl", "FRAGMENT")  # type: ignore[no-untyped-call]
    library.define("norm(Tensor x, int index) -> Tensor")  # type: ignore[no-untyped-call]
    # A copy, not the tensor itself: an operator that returns its input breaks tracing.
    library.impl("norm", lambda x, _index: x.clone(), "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    return library


@contextmanager
def _marked(twin: Twin) -> Iterator[None]:
    """Let the twin's batch norms leave marks instead of normalising."""
    try:
        for index, slot in enumerate(twin.slots):
            # Marked by number: which norm it is must survive the trace, and modules do not.
            slot.__dict__["norm"] = functools.partial(_mark, index)
        yield
    finally:
        for slot in twin.slots:
            slot.__dict__.pop("norm", None)


def _mark(index: int, x: Tensor) -> Tensor:
    marked: Tensor = _marker()(x, index)
    return marked


@torch.no_grad()
def _traced(twin: Twin, features: Tensor, groups: int) -> fx.GraphModule:
    from torch.fx.experimental.proxy_tensor import make_fx

    with _marked(twin):
        module: fx.GraphModule = make_fx(lambda x: twin.split.resumed(x, groups))(features)
    module.graph.eliminate_dead_code()
    return module
