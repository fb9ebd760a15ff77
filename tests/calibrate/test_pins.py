"""What SICL said before a change it says after it."""

from __future__ import annotations

import pytest
import torch
from pinned import CASES, machine, on_file, values_of

MACHINE, ON_FILE = on_file()


@pytest.mark.filterwarnings("ignore:Tent normalises a batch of one image")
@pytest.mark.parametrize("name", CASES)
def test_confidences_and_signals_are_those_on_file(name: str) -> None:
    """Bit for bit on the machine that wrote them, within rounding elsewhere."""
    found, expected = values_of(CASES[name]), ON_FILE[name]
    assert found.keys() >= expected.keys()
    tolerance = 0.0 if machine() == MACHINE else 5e-3
    for key, value in expected.items():
        torch.testing.assert_close(
            found[key], value, atol=tolerance, rtol=0, msg=lambda m, key=key: f"{key}: {m}"
        )
