"""Run a network up to its cut; on a GPU, replay that as one graph."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor

from sicl.calibrate._capture import Captured, is_out_of_memory, tuned
from sicl.models.norms import batch_norms
from sicl.models.split import Split

_MOST_SHAPES = 8
_MOST_MOVES = 4


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
        self._places = [(t, name) for t in tables for name, value in t.items() if value is not None]
        self._graphs: dict[Hashable, Captured | None] = {}
        self._addresses: tuple[int, ...] = ()
        self._moves = 0
        self._works = True

    def __call__(self, images: Tensor, *, view: bool = False) -> Tensor:
        """Return the features; `view`: of another view of the last batch, which stays the last."""
        key = (view, tuple(images.shape))
        if not self._works or not self._known(key):
            with tuned(images.device):
                return self.plain(images, view=view)
        graph = self._graphs[key] or self._capture(images, view)
        self._graphs[key] = graph
        if graph is None:
            return self.plain(images, view=view)
        features: Tensor = graph([images])
        return features

    def forget(self) -> None:
        """Give back the graphs' memory."""
        self._graphs.clear()

    def plain(self, images: Tensor, *, view: bool = False) -> Tensor:
        """Run the network itself."""
        return self._split.features_of_view(images) if view else self._split.features(images)

    def _known(self, key: Hashable) -> bool:
        """Whether images of this kind came before, with the network's tensors where they are now."""
        tensors = [table[name] for table, name in self._places]
        addresses = tuple(0 if tensor is None else tensor.data_ptr() for tensor in tensors)
        if addresses != self._addresses or len(self._graphs) > _MOST_SHAPES:
            self._moves += addresses != self._addresses
            self._graphs.clear()
            self._addresses = addresses
        if self._moves > _MOST_MOVES:
            self._works = False
            self._notes.append("no CUDA graph of the part before the cut: the network's tensors keep moving")
        known = key in self._graphs
        self._graphs.setdefault(key, None)
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
