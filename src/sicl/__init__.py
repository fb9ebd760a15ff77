"""Trustworthy confidence for classifiers that adapt while they are used.

```python
adapted = sicl.Tent().attach(model)
trusted = sicl.SICL().attach(adapted)
out = trusted(images)          # out.labels, out.confidence
```
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.5.1"

if TYPE_CHECKING:
    from sicl.adapt import BatchNorm as BatchNorm
    from sicl.adapt import Come as Come
    from sicl.adapt import Cotta as Cotta
    from sicl.adapt import Deyo as Deyo
    from sicl.adapt import Eata as Eata
    from sicl.adapt import Lame as Lame
    from sicl.adapt import Roid as Roid
    from sicl.adapt import Rotta as Rotta
    from sicl.adapt import Sar as Sar
    from sicl.adapt import Sotta as Sotta
    from sicl.adapt import Source as Source
    from sicl.adapt import Tent as Tent
    from sicl.calibrate import SICL as SICL
    from sicl.calibrate import McDropout as McDropout
    from sicl.calibrate import Panel as Panel
    from sicl.calibrate import PseudoCal as PseudoCal
    from sicl.calibrate import Softmax as Softmax
    from sicl.calibrate import TemperatureScaling as TemperatureScaling
    from sicl.calibrate import TransCal as TransCal
    from sicl.errors import SiclError as SiclError
    from sicl.models.preprocess import Normalized as Normalized
    from sicl.models.preprocess import Preprocess as Preprocess
    from sicl.models.zoo import load_model as load_model
    from sicl.monitor import Monitor as Monitor
    from sicl.types import Batch as Batch
    from sicl.types import Prediction as Prediction
    from sicl.types import SourceData as SourceData

# Imported on first use: `sicl --help` and plan checks should not wait for torch.
_ROOMS = {
    "sicl.adapt": "BatchNorm Come Cotta Deyo Eata Lame Roid Rotta Sar Sotta Source Tent",
    "sicl.calibrate": "SICL McDropout Panel PseudoCal Softmax TemperatureScaling TransCal",
    "sicl.errors": "SiclError",
    "sicl.models.preprocess": "Normalized Preprocess",
    "sicl.models.zoo": "load_model",
    "sicl.monitor": "Monitor",
    "sicl.types": "Batch Prediction SourceData",
}
_HOME = {name: room for room, names in _ROOMS.items() for name in names.split()}

__all__ = [*sorted(_HOME), "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sicl' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
