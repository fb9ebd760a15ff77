"""Run a network up to its cut; on a GPU, replay that as one graph."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor

from sicl.engine.graphs import Captured, is_out_of_memory, tuned
from sicl.engine.norms import batch_norms
from sicl.engine.shapes import Shapes
from sicl.engine.split import Split

_MOST_SHAPES = 8


class Prefix:
    """`prefix(images)` gives the features at the cut, from the second time on by a captured graph.

    A graph is believed only if it gives the features of the plain pass, and is made anew when a parameter or
    buffer of the network moved in memory. What a call returns is overwritten by the next call of its kind.

    Args:
        split: the live network.
        notes: where to say what did not work.
    """

    def __init__(self, split: Split, notes: list[str]) -> None:
        self._split, self._notes = split, notes
        # Fresh statistics leave the batch norms' buffers unread.
        unread = set(batch_norms(split.network)) if split.fresh else set()
        modules = list(split.network.modules())
        tables = [m._parameters for m in modules] + [m._buffers for m in modules if m not in unread]
        self._shapes: Shapes[Captured] = Shapes(tables, _MOST_SHAPES)
        self._works = True

    def __call__(self, images: Tensor, *, view: bool = False) -> Tensor:
        """Return the features; `view`: of another view of the last batch, which stays the last."""
        key = (view, tuple(images.shape))
        if not self._works or not self._known(key):
            with tuned(images.device):
                return self.plain(images, view=view)
        graph = self._shapes.graphs[key] or self._capture(images, view)
        self._shapes.graphs[key] = graph
        if graph is None:
            return self.plain(images, view=view)
        features: Tensor = graph([images])
        return features

    def forget(self) -> None:
        """Give back the graphs' memory."""
        self._shapes.graphs.clear()

    def plain(self, images: Tensor, *, view: bool = False) -> Tensor:
        """Run the network itself."""
        return self._split.features_of_view(images) if view else self._split.features(images)

    def _known(self, key: Hashable) -> bool:
        known = self._shapes.known(key)
        if self._shapes.restless:
            self._works = False
            self._notes.append("no CUDA graph of the part before the cut: the network's tensors keep moving")
        return known

    def _capture(self, images: Tensor, view: bool) -> Captured | None:
        try:
            expected = self.plain(images, view=view)
            graph = Captured(lambda tensors: self.plain(tensors[0], view=view), [images], None)
            found: Tensor = graph([images])
            off = float((found - expected).abs().max()) / (float(expected.abs().max()) + 1e-6)
            if not off < 1e-2:
                raise RuntimeError(f"its features are off by {off:.3g}")
            return graph
        except Exception as error:
            if is_out_of_memory(error):
                raise
            self._works = False
            self._notes.append(f"no CUDA graph of the part before the cut: {error}")
            return None
