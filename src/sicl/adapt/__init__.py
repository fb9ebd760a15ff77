"""Test-time adaptation methods: frozen specs that become live adapters through `attach`."""

from sicl.adapt._base import Adapter, Method, Moment, check_images
from sicl.adapt.batchnorm import BatchNorm
from sicl.adapt.source import Source
from sicl.adapt.tent import Tent

METHODS: dict[str, type[Method]] = {"source": Source, "batchnorm": BatchNorm, "tent": Tent}

__all__ = ["METHODS", "Adapter", "BatchNorm", "Method", "Moment", "Source", "Tent", "check_images"]
