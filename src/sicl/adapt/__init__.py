"""Test-time adaptation methods: frozen specs that become live adapters through `attach`."""

from sicl.adapt._base import Adapter, Method, Moment, check_images
from sicl.adapt.batchnorm import BatchNorm
from sicl.adapt.eata import Eata
from sicl.adapt.rotta import Rotta
from sicl.adapt.sar import Sar
from sicl.adapt.sotta import Sotta
from sicl.adapt.source import Source
from sicl.adapt.tent import Tent

METHODS: dict[str, type[Method]] = {
    "source": Source,
    "batchnorm": BatchNorm,
    "tent": Tent,
    "eata": Eata,
    "sar": Sar,
    "rotta": Rotta,
    "sotta": Sotta,
}

__all__ = [
    "METHODS",
    "Adapter",
    "BatchNorm",
    "Eata",
    "Method",
    "Moment",
    "Rotta",
    "Sar",
    "Sotta",
    "Source",
    "Tent",
    "check_images",
]
