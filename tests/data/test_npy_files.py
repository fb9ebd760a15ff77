"""Arrays are written piece by piece, whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from sicl.data.npy import map_npy, write_npy


def test_pieces_make_the_array(tmp_path: Path) -> None:
    """In any order; rows that no piece covers are zero."""
    rows = np.arange(24, dtype=np.uint8).reshape(6, 4) + 1
    write_npy(tmp_path / "a.npy", (10, 4), [(4, rows[3:]), (0, rows[:3])])
    expected = np.zeros((10, 4), np.uint8)
    expected[:3], expected[4:7] = rows[:3], rows[3:]
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), expected)
    np.testing.assert_array_equal(map_npy(tmp_path / "a.npy"), expected)


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    """An exception between two pieces neither replaces the array nor leaves a part."""
    path = tmp_path / "a.npy"
    np.save(path, np.ones(3, np.uint8))

    def pieces() -> Iterator[tuple[int, np.ndarray]]:
        yield 0, np.zeros((2, 4), np.uint8)
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        write_npy(path, (4, 4), pieces())
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.npy"]
    assert np.load(path).tolist() == [1, 1, 1]
