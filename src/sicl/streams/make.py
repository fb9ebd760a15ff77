"""Make a stream from its name and options, as a configuration file or command line gives them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from sicl.errors import OptionError, nearest, require_choice
from sicl.streams.base import Stream
from sicl.streams.kinds import Benign, Continual, Dynamic, Mixed
from sicl.streams.noisy import Noisy

STREAMS: dict[str, type[Stream]] = {
    "benign": Benign,
    "dynamic": Dynamic,
    "continual": Continual,
    "mixed": Mixed,
    "noisy": Noisy,
}
"""The kinds of streams by name."""


def make_stream(name: str, /, **options: Any) -> Stream:
    """Return the spec of a stream; for "noisy", `base` names the kind (default "benign") the other options go to.

    >>> make_stream("noisy", corruption="fog", ood="noise", share=0.2).base.corruption
    'fog'
    """
    require_choice(STREAMS, stream=name)
    if name != "noisy" or isinstance(options.get("base"), Stream):
        return STREAMS[name](**_known(name, options))
    own = {key: options.pop(key) for key in ("ood", "share") if key in options}
    return Noisy(base=make_stream(options.pop("base", "benign"), **options), **own)


def _known(name: str, options: dict[str, Any]) -> dict[str, Any]:
    known = [option.name for option in fields(STREAMS[name])]
    for option in options:
        if option not in known:
            raise OptionError(
                f"the stream {name!r} has no option {option!r}; it has {', '.join(known)}.{nearest(option, known)}"
            )
    return options
