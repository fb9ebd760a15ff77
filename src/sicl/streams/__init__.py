"""Streams: an order over a data set's corrupted images, as frozen specs with an `open()`."""

from sicl.streams.base import Ordered, Stream
from sicl.streams.cache import ImageCache
from sicl.streams.kinds import Benign, Continual, Dynamic, Mixed
from sicl.streams.make import STREAMS, make_stream
from sicl.streams.noisy import Noisy
from sicl.streams.plan import Plan
from sicl.streams.player import OpenStream

__all__ = [
    "STREAMS",
    "Benign",
    "Continual",
    "Dynamic",
    "ImageCache",
    "Mixed",
    "Noisy",
    "OpenStream",
    "Ordered",
    "Plan",
    "Stream",
    "make_stream",
]
