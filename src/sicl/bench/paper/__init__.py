"""The paper's tables as data, so that every result can stand beside the printed one."""

from sicl.bench.tables.printed import (
    CORRUPTIONS,
    Inconsistency,
    inconsistencies,
    paper_value,
    paper_wins,
)

__all__ = ["CORRUPTIONS", "Inconsistency", "inconsistencies", "paper_value", "paper_wins"]
