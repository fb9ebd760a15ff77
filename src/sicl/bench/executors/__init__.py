"""Where cells run: in this process, in several, or on a Ray cluster; the same results from all."""

from __future__ import annotations

from sicl.bench.executors.base import Event, Executor, Finished, Settings, Started, Stepped
from sicl.bench.executors.choose import EXECUTORS, make_executor

__all__ = ["EXECUTORS", "Event", "Executor", "Finished", "Settings", "Started", "Stepped", "make_executor"]
