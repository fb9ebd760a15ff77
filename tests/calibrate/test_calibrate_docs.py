"""The code on the documentation pages runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def _run(page: str) -> dict[str, Any]:
    """Run a page's Python blocks one after the other, and return what they defined."""
    names: dict[str, Any] = {"__name__": "__main__"}
    blocks = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    assert blocks, page
    for block in blocks:
        exec(compile(block, page, "exec", dont_inherit=True), names)
    return names


def test_the_page_on_adding_a_calibrator_runs() -> None:
    """One small class attaches, alone and in a panel."""
    names = _run("adding-a-calibrator.md")
    assert set(names["out"]) == {"softmax", "mirror"}


def test_the_page_on_selective_prediction_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """The threshold keeps its promise on the data it was chosen on, and lowers the risk later."""
    names = _run("selective-prediction.md")
    assert names["point"].risk <= 0.10
    assert 0.2 < names["point"].coverage <= 1.0
    later, correct = names["later"], names["correct"][256:]
    assert correct[later].float().mean() > correct.float().mean()
    assert "at half coverage" in capsys.readouterr().out


def test_the_calibrators_page_runs() -> None:
    """Its opening example attaches one calibrator, and a panel with source data."""
    assert set(_run("calibrators.md")["panel"].calibrations) == {"ts", "transcal"}


def test_the_engine_page_runs() -> None:
    """Its opening example resumes a network; the logits are the engine's."""
    assert _run("engine.md")["logits"].shape == (8, 10)


def test_the_glossary_names_every_signal() -> None:
    """What a user finds in `signals` is explained."""
    import torch

    import sicl

    text = (DOCS / "glossary.md").read_text()
    for method in (sicl.Tent(), sicl.Source()):
        trusted = sicl.SICL(variants=2, content_variants=2).attach(method.attach(sicl.load_model("demo")))
        for _ in range(2):
            signals = trusted(torch.rand(16, 3, 32, 32)).signals
        assert [name for name in signals if f"`{name}`" not in text] == []


def test_the_calibrators_page_names_every_calibrator_and_option() -> None:
    """No option goes undocumented."""
    from dataclasses import fields

    from sicl.calibrate import CALIBRATORS

    text = (DOCS / "calibrators.md").read_text()
    for name, kind in CALIBRATORS.items():
        assert f"`{kind.__name__}`" in text
        missing = [f.name for f in fields(kind) if f"`{f.name}" not in text]
        assert not missing, name
