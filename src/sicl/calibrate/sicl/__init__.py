"""SICL: style invariance as a correctness likelihood."""

from sicl.calibrate.sicl.spec import SICL

__all__ = ["SICL"]
