"""Triton, where it is installed: `triton` and its language `tl`, or None."""

from __future__ import annotations

import importlib
from typing import Any

triton: Any = None
tl: Any = None
try:
    triton = importlib.import_module("triton")
    tl = importlib.import_module("triton.language")
except ImportError:
    pass
