"""Read the CIFAR authors' pickles without running what else a pickle could hold."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

from sicl.errors import DataError, reason

# The one function numpy's own pickles call, wherever this numpy version keeps it.
_RECONSTRUCT = np.zeros(1).__reduce__()[0]


class _ArrayUnpickler(pickle.Unpickler):
    """Allow numpy arrays and plain values, refuse everything else."""

    def find_class(self, module: str, name: str) -> object:
        """Resolve the three names a pickled array needs."""
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return _RECONSTRUCT
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):
            return _encode
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _encode(text: str, encoding: str) -> bytes:
    return text.encode(encoding)


def read_pickle(path: Path) -> dict[str, object]:
    """Read a pickled dictionary of arrays, lists and strings; keys come back as `str`."""
    try:
        with path.open("rb") as file:
            content = _ArrayUnpickler(file, encoding="bytes").load()
    except FileNotFoundError:
        raise DataError(f"`{path}` is missing.") from None
    except Exception as error:  # a pickle is a program: a damaged one fails in any way
        raise DataError(
            f"`{path}` is truncated, damaged or no CIFAR batch ({reason(error)}); download it again."
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"`{path}` is no CIFAR batch: it holds {type(content).__name__}, not a dictionary.")
    return {
        key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key): value
        for key, value in content.items()
    }
