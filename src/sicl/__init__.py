"""Trustworthy confidence for classifiers that adapt while they are used."""

__version__ = "0.1.0"
