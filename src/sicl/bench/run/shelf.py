"""What a worker keeps loaded from one cell to the next: data sets, source data, models, corrupted images."""

from __future__ import annotations

import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from sicl.bench.plan import registry
from sicl.data import Dataset, load_dataset, source_data
from sicl.errors import OptionError
from sicl.models.zoo import count_classes, load_model
from sicl.streams import ImageCache
from sicl.types import SourceData

Kept = TypeVar("Kept")
KEEP = 6


class Shelf:
    """Loads things once and keeps the last few of each sort.

    Args:
        data: the folder with the data; None means SICL_DATA or ~/.cache/sicl.
        device: where models and source data go.
        cache: keeps corrupted images between cells: a folder (shared between processes), else memory.
    """

    def __init__(
        self,
        data: str | Path | None = None,
        device: torch.device | str = "cpu",
        cache: str | Path | None = None,
    ) -> None:
        self.data = data
        self.device = torch.device(device)
        self.cache = ImageCache(Path(cache) if cache else None, max_bytes=(32 if cache else 2) * 2**30)
        self._kept: OrderedDict[str, Any] = OrderedDict()

    def dataset(self, name: str, split: str) -> Dataset:
        """Return a data set by its name, or from the user's own function `f(root, split)`."""
        return self._keep(f"dataset {name} {split}", lambda: self._load_dataset(name, split))

    def source(self, name: str, split: str, n: int) -> SourceData:
        """Return labelled source data on the device."""
        return self._keep(
            f"source {name} {split} {n}",
            lambda: source_data(self.dataset(name, split), n=n, device=self.device),
        )

    def model(self, load: str, options: Mapping[str, Any]) -> tuple[nn.Module, str]:
        """Return a model on the device, and a checksum of its weights."""
        return self._keep(f"model {load} {sorted(options.items())}", lambda: self._load_model(load, options))

    def _keep(self, key: str, load: Callable[[], Kept]) -> Kept:
        found: Kept = self._kept.pop(key) if key in self._kept else load()
        self._kept[key] = found
        while len(self._kept) > KEEP:
            self._kept.popitem(last=False)
        return found

    def _load_dataset(self, name: str, split: str) -> Dataset:
        if registry.OWN.fullmatch(name) and name.partition(":")[0] not in registry.PLACES:
            made = registry.import_own_maker(name)(self.data, split)
            if not isinstance(made, Dataset):
                raise OptionError(f"{name!r} must return a sicl.data.Dataset, got {type(made).__name__}.")
            return made
        return load_dataset(name, self.data, split)

    def _load_model(self, load: str, options: Mapping[str, Any]) -> tuple[nn.Module, str]:
        scheme = load.partition(":")[0]
        if registry.OWN.fullmatch(load) and scheme not in registry.MODEL_LIBRARIES:
            made = registry.import_own_maker(load)
            # A class or function makes the model; a module object is the model.
            model = made(**options) if inspect.isroutine(made) or inspect.isclass(made) else made
            if not isinstance(model, nn.Module):
                raise OptionError(f"{load!r} must return a torch.nn.Module, got {type(model).__name__}.")
            model = model.eval().to(self.device)
        else:
            model = load_model(load, device=self.device, **options)
        return model, weights_checksum(model)


def weights_checksum(model: nn.Module) -> str:
    """Return a short hash of every parameter and buffer."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def require_classes(model: nn.Module, dataset: Dataset, load: str) -> None:
    """Raise `OptionError` if the data set has no labels, or classes the model does not know."""
    if not dataset.labelled:
        raise OptionError(
            f"{dataset.name!r} has no class folders, so nothing can be measured on it; sort its pictures into one "
            "folder a class, or use `sicl predict`."
        )
    known = count_classes(model)
    if known is not None and known < dataset.n_classes:
        raise OptionError(
            f"the model {load!r} has {known} classes but the data set {dataset.name!r} has {dataset.n_classes}; "
            "keep the model to its data sets with `datasets` in the plan."
        )
