"""Cells become records: one adaptation over one stream each, kept in a folder."""
