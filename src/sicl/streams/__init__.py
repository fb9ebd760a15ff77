"""Streams: an order over a data set's corrupted images, as frozen specs with an `open()`."""

from sicl.streams.cache import ImageCache
from sicl.streams.kinds import STREAMS, Benign, Continual, Dynamic, Mixed, Noisy, make_stream
from sicl.streams.plan import Plan
from sicl.streams.stream import OpenStream, Ordered, Stream

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
