"""Test-time adaptation methods: frozen specs that become live adapters through `attach`."""

from sicl.adapt._base import Adapter, Method, Moment
from sicl.adapt._images import check_images
from sicl.adapt.batchnorm import BatchNorm
from sicl.adapt.come import Come
from sicl.adapt.cotta import Cotta
from sicl.adapt.deyo import Deyo
from sicl.adapt.eata import Eata
from sicl.adapt.lame import Lame
from sicl.adapt.roid import Roid
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
    "come": Come,
    "deyo": Deyo,
    "cotta": Cotta,
    "roid": Roid,
    "lame": Lame,
}
"""Methods by the name that plans and the command line use."""

__all__ = [
    "METHODS",
    "Adapter",
    "BatchNorm",
    "Come",
    "Cotta",
    "Deyo",
    "Eata",
    "Lame",
    "Method",
    "Moment",
    "Roid",
    "Rotta",
    "Sar",
    "Sotta",
    "Source",
    "Tent",
    "check_images",
]
